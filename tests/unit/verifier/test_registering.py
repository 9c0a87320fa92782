"""Further grader types by name, beside the built-in ones."""

import pytest

from rljob_api import errors
from rljob_workers.verifier.graders import catalog, exact

EXACT = "rljob_workers.verifier.graders.exact:ExactGrader"


def test_a_further_type_is_found_under_its_name() -> None:
    assert catalog.imported([f"mine={EXACT}"]) == {"mine": exact.ExactGrader}


@pytest.mark.covers("workflows 2.1")
@pytest.mark.parametrize("entries", [[f"mine={EXACT}", f"mine={EXACT}"], [f"boxed={EXACT}"]])
def test_a_name_that_is_taken_is_refused(entries: list[str]) -> None:
    name = entries[-1].partition("=")[0]
    with pytest.raises(errors.ManifestError, match=f"the name {name} is taken"):
        catalog.imported(entries)


@pytest.mark.parametrize("entry", ["mine", "mine=module", "=module:Grader", "mine=:Grader", "mine=module:"])
def test_an_entry_of_another_form_is_refused(entry: str) -> None:
    with pytest.raises(errors.ManifestError, match="must read name=module:attribute"):
        catalog.imported([entry])
