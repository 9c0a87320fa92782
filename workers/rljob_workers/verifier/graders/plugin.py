"""`plugin:<name>`: a grader of an installed package, by its entry point of that name in group `rljob.graders`.

    [project.entry-points."rljob.graders"]
    word-count = "my_package.graders:WordCount"

The entry point is what a built-in type has in `registry.BUILT_IN`: a function from the reward's config to a
`base.Grader`; `base.options` checks the options by a model of the plugin's own.
The verifier's serving process looks the name up and imports nothing. The package is imported in grading workers, which
can be killed, and by the checks before a job starts, each a program of its own: these check options and records.
"""

from collections.abc import Mapping

from rljob_api import errors, plugins, process_config
from rljob_workers.runtime import redaction, user_code
from rljob_workers.verifier.graders import base

_MEMBERS = ("needs_worker", "check", "warm", "quick", "grade")


class PluginGrader(base.SingleTimeLimit):
    """Grades by the plugin once `warm` has loaded it. Its limits are of one answer."""

    def __init__(self, config: process_config.GraderConfig) -> None:
        """Raises ManifestError if no installed package has this grader."""
        self._config, self._where = config, f"reward {config.name!r} (type {config.type})"
        self._entry = plugins.find(plugins.GRADERS, config.type, field=f"reward {config.name!r}: its type")
        self._grader: base.Grader | None = None

    @property
    def needs_worker(self) -> bool:
        """Return True: code of a package runs where it can be killed."""
        return True

    def check(self, columns: Mapping[str, object]) -> None:
        """Raise DataError for a record that the plugin cannot grade, if the plugin has been loaded."""
        if self._grader is not None:
            self._grader.check(columns)

    def warm(self) -> None:
        """Load the plugin. Raises ManifestError if it cannot be imported, is not a grader or refuses its options."""
        factory = user_code.load(
            f"{self._entry.module}:{self._entry.attr}", file="", field=f"{self._where}: its entry point"
        )
        if not callable(factory):
            raise errors.ManifestError(f"{self._where}: {self._entry.value} is not callable")
        try:
            grader = factory(self._config)
        except errors.ManifestError:
            raise
        except Exception as error:  # boundary: code of a package
            raise errors.ManifestError(
                f"{self._where}: {self._entry.value} raised {redaction.describe(error)}"
            ) from error
        missing = [member for member in _MEMBERS if not hasattr(grader, member)]
        if missing:
            raise errors.ManifestError(f"{self._where}: {self._entry.value} made no grader: no {', '.join(missing)}")
        grader.warm()
        self._grader = grader

    def quick(self, answer: base.Answer) -> base.Grade | None:  # noqa: ARG002  # the Protocol's signature
        """Decide nothing in the serving process."""
        return None

    def grade(self, answer: base.Answer) -> base.Grade:
        """Return the plugin's grade. Raises GraderError if it returns something else."""
        assert self._grader is not None, "warm was called"
        grade = self._grader.quick(answer) or self._grader.grade(answer)
        if not isinstance(grade, base.Grade):
            raise errors.GraderError(f"{self._config.type} returned a {type(grade).__name__}, not a Grade")
        return grade
