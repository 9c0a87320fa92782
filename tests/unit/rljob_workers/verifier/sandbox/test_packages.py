"""Packages of programs: what a reward names can be imported at once, and nothing that it brings along leads outside."""

import contextlib
import dataclasses
import json
import pathlib
import secrets
from collections.abc import Iterator

import pytest

from rljob_api import errors, process_config
from rljob_workers.verifier import check, service, worker
from rljob_workers.verifier.graders import base
from rljob_workers.verifier.graders.code import code_grader
from rljob_workers.verifier.graders.repository import repository_grader
from rljob_workers.verifier.sandbox import programs
from rljob_workers.verifier.sandbox import repository as suites
from rljob_workers.verifier.sandbox.confinement import profile
from rljob_workers.verifier.sandbox.processes import packages, spawn, warm

NUMPY = ("numpy",)
LIMITS = programs.Limits(cpu_s=20.0, wall_s=120.0, memory_bytes=512 << 20, output_bytes=64 << 10)


@pytest.fixture(params=["fresh", "warm"])
def start(request: pytest.FixtureRequest) -> Iterator[spawn.Start]:
    with contextlib.closing(warm.Interpreter(NUMPY)) as interpreter:
        yield interpreter.start if request.param == "warm" else spawn.fresh


def run(source: str, confined: profile.Confinement, start: spawn.Start, names: tuple[str, ...]) -> programs.Run:
    program = programs.Program(source=source, compat=False, packages=names)
    return programs.run(program, stdin=b"", limits=LIMITS, confined=confined, start=start)


@pytest.mark.covers("sandbox 4")
def test_program_has_the_packages_that_its_reward_names(confined: profile.Confinement, start: spawn.Start) -> None:
    source = (
        "import sys\nbefore = 'numpy' in sys.modules\nimport numpy as np\nprint(before, (np.eye(3) @ np.ones(3)).sum())"
    )
    assert run(source, confined, start, NUMPY).output == b"True 3.0\n"
    lazy = (
        "import numpy as np\nprint(np.fft.fft([1, 0]).real, np.polynomial.Polynomial([1, 2])(3), np.ma.ones(1).sum())"
    )
    assert run(lazy, confined, start, NUMPY).output == b"[1. 1.] 7.0 1.0\n"


def test_program_of_a_reward_that_names_none_finds_none(confined: profile.Confinement) -> None:
    with contextlib.closing(warm.Interpreter()) as interpreter:
        for start in (interpreter.start, spawn.fresh):
            ended = run("try:\n    import numpy\nexcept ImportError:\n    print('none')", confined, start, ())
            assert ended.output == b"none\n"


# What numpy offers to get at files, memory, code and processes, as statements; `secret` is a file outside.
THROUGH_NUMPY = {
    "read": "np.fromfile(secret, dtype=np.uint8)[0]",
    "read text": "np.loadtxt(secret, dtype=str)",
    "read text that may have gaps": "np.genfromtxt(secret, dtype=str)",
    "map": "np.memmap(secret, dtype=np.uint8, mode='r')[0]",
    "map to write": "np.memmap(secret, dtype=np.uint8, mode='r+')[0]",
    "map a new file": "np.memmap(secret + '.new', dtype=np.uint8, mode='w+', shape=(1,))",
    "load": "np.load(secret, allow_pickle=True)",
    "load by mapping": "np.load(secret, mmap_mode='r')",
    "save": "np.save(secret + '.npy', np.ones(1))",
    "write": "np.ones(1).tofile(secret + '.new')",
    "dump": "np.ones(1).dump(secret + '.new')",
    "memory of its own as a file": "np.fromfile('/proc/self/environ', dtype=np.uint8, count=1)[0]",
    "memory of its runner": "np.fromfile(f'/proc/{os.getppid()}/environ', dtype=np.uint8, count=1)[0]",
    "what lies beside it": "os.listdir(os.path.dirname(os.path.dirname(np.__file__)))",
    "other packages": "__import__('google.protobuf')",
    "the verifier": "__import__('rljob_workers')",
    "load a library": "np.ctypeslib.load_library('libsecret', os.path.dirname(secret))",
    "a process by a pickle": 'pickle.loads(b"cposix\\nfork\\n(tR.") == 0 and os._exit(0)',
    "a socket by a pickle": 'pickle.loads(b"csocket\\nsocket\\n(tR.")',
    "fetch": "np.lib.npyio.DataSource(None).open('http://127.0.0.1:9/x')",
    "change itself for others": "open(np.__file__, 'a').close()",
}
TRIES = """
import os, pickle, warnings
import numpy as np
warnings.simplefilter("ignore")
def reached(secret, statements):
    done = []
    for statement in statements:
        try:
            exec(statement, {"os": os, "np": np, "pickle": pickle, "secret": secret})
        except Exception:
            continue
        done.append(statement)
    return done
"""


@pytest.mark.covers("sandbox 4")
def test_nothing_outside_is_reached_through_numpy(
    confined: profile.Confinement, start: spawn.Start, tmp_path: pathlib.Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    arguments = [str(secret), list(THROUGH_NUMPY.values())]
    program = programs.Program(source=TRIES, compat=False, fn_name="reached", arguments=arguments, packages=NUMPY)
    ended = programs.run(program, stdin=b"", limits=LIMITS, confined=confined, start=start)
    assert ended.records == (("returned", []),)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_most_of_it_succeeds_where_nothing_confines(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("1")
    names = ("read", "read text", "map", "memory of its own as a file", "what lies beside it", "a socket by a pickle")
    reads = [THROUGH_NUMPY[name] for name in names]
    program = programs.Program(
        source=TRIES, compat=False, fn_name="reached", arguments=[str(secret), reads], packages=NUMPY
    )
    ended = programs.run(program, stdin=b"", limits=LIMITS)
    assert ended.records == (("returned", reads),)


@pytest.mark.covers("sandbox 4")
def test_random_numbers_of_two_programs_differ_and_a_seed_still_counts(confined: profile.Confinement) -> None:
    source = "import numpy as np\nfirst = np.random.rand()\nnp.random.seed(5)\nprint(first, np.random.rand())"
    with contextlib.closing(warm.Interpreter(NUMPY)) as interpreter:
        found = [run(source, confined, interpreter.start, NUMPY).output.split() for _ in range(3)]
    assert len({first for first, _ in found}) == 3
    assert {seeded for _, seeded in found} == {b"0.22199317108973948"}


@pytest.mark.parametrize(("num_bytes", "printed"), [(400 << 20, b"on\n"), (600 << 20, b"no room\n")])
def test_what_packages_map_is_not_taken_from_the_program(
    confined: profile.Confinement, start: spawn.Start, num_bytes: int, printed: bytes
) -> None:
    # Address space alone: of pages that no one touches none is resident.
    source = (
        f"import mmap\ntry:\n    mmap.mmap(-1, {num_bytes})\n    print('on')\nexcept OSError:\n    print('no room')"
    )
    assert run(source, confined, start, NUMPY).output == printed


@pytest.mark.parametrize("names", [("networkx",), ("sortedcontainers",), ("sympy",)])
def test_packages_of_the_image_work(confined: profile.Confinement, names: tuple[str, ...]) -> None:
    sources = {
        "networkx": "import networkx as nx\nprint(nx.shortest_path_length(nx.path_graph(4), 0, 3))",
        "sortedcontainers": "from sortedcontainers import SortedList\nprint(SortedList([3, 4, 1]).bisect(3) + 1)",
        "sympy": "import sympy\nprint(sympy.Integer(3))",
    }
    with contextlib.closing(warm.Interpreter(names)) as interpreter:
        assert run(sources[names[0]], confined, interpreter.start, names).output == b"3\n"


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("np.int64(3)", "3"), ("np.float64(0.5)", "0.5"), ("np.bool_(True)", "true"), ("np.arange(3)", "[0, 1, 2]"),
        ("np.eye(2, dtype=int)", "[[1, 0], [0, 1]]"), ("[np.int64(3), 4]", "[3, 4]"),
        ("{'a': np.int64(3)}", '{"a": 3}'), ("(np.float32(1), np.str_('b'))", '[1, "b"]'),
        ("{np.int64(3): 1}", '{"3": 1}'),
    ],
)  # fmt: skip
def test_numbers_and_arrays_of_numpy_are_returned_as_what_they_hold(
    confined: profile.Confinement, returned: str, expected: str
) -> None:
    with contextlib.closing(worker.Runner(confined, packages=[NUMPY])) as ran:
        for value, score in ((expected, 1.0), ('"another"', 0.0)):
            reward = process_config.GraderConfig(name="r", type="code", packages=NUMPY, wall_limit_s=100.0)
            program = f"```python\nimport numpy as np\ndef f(a):\n    return {returned}\n```"
            columns = {"input_output": json.dumps({"fn_name": "f", "inputs": ["1"], "outputs": [value]})}
            answer = base.Answer(prompt="", completion=program, columns=columns)
            assert code_grader.CodeGrader(reward, run=ran).grade(answer).score == score


def distribution(folder: pathlib.Path, name: str, files: dict[str, str], requires: str = "") -> None:
    """Install a distribution into a folder."""
    record = [*files, f"{name}-1.0.dist-info/METADATA", f"{name}-1.0.dist-info/RECORD"]
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    files = {**files, record[-2]: metadata, record[-1]: "".join(f"{file},,\n" for file in record)}
    for file, text in files.items():
        place = folder / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.fixture
def site(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a folder on the path, for distributions."""
    packages.installed.cache_clear()
    packages._owners.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.covers("sandbox 4")
def test_package_comes_with_what_it_requires_and_nothing_that_lies_beside_it(
    site: pathlib.Path, confined: profile.Confinement
) -> None:
    distribution(site, "that-one", {"that/__init__.py": "import needed\nVALUE = needed.VALUE\n"}, "needed>=1")
    distribution(site, "needed", {"needed.py": "VALUE = 3\n"}, "absent; python_version > '3'")
    distribution(site, "beside", {"beside.py": ""})
    found = packages.installed(("that",))
    assert set(found.modules) == {"that", "needed"}
    assert set(found.readable) == {str(site / "that"), str(site / "needed.py")}
    ended = run("import that\nprint(that.VALUE)", confined, spawn.fresh, ("that",))
    assert ended.output == b"3\n"


def test_module_of_the_standard_library_cannot_be_hidden_by_a_package(
    site: pathlib.Path, confined: profile.Confinement
) -> None:
    distribution(site, "hides", {"hides/__init__.py": "", "wave.py": "raise ValueError\n"})
    assert run("import wave\nprint(wave.__name__)", confined, spawn.fresh, ("hides",)).output == b"wave\n"


def config_of(make: object, *names: str, type_: str = "code") -> process_config.VerifierConfig:
    assert callable(make)
    made = make(process_config.GraderConfig(name="right", type=type_, packages=names))
    assert isinstance(made, process_config.VerifierConfig)
    return made


@pytest.mark.parametrize("type_", ["code", "areal-code", "repository-tests"])
def test_package_that_is_not_there_is_named_with_what_is(make_config: object, type_: str) -> None:
    config = config_of(make_config, "numpy", "no_such_package", type_=type_)
    found = check.findings(config, [])
    (problem,) = found.problems
    assert problem.startswith("reward 'right': packages[1] is 'no_such_package', which is not installed")
    assert problem.endswith("there are: networkx, numpy, sortedcontainers, sympy")
    with pytest.raises(errors.ManifestError, match=r"packages\[1\] is 'no_such_package'"):
        service.Service(config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libbroken.so is not there')", "libbroken.so is not there"),
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "started threads"),
    ],
)
def test_package_that_cannot_be_imported_is_told_before_anything_is_graded(
    site: pathlib.Path, make_config: object, text: str, said: str
) -> None:
    name = f"broken_{secrets.token_hex(4)}"
    distribution(site, name, {f"{name}.py": text})
    (problem,) = check.findings(config_of(make_config, name), []).problems
    assert problem.startswith(f"reward 'right': packages {name} cannot be used: ")
    assert said in problem


def test_reward_with_packages_and_one_without_have_interpreters_of_their_own(
    confined: profile.Confinement,
) -> None:
    with contextlib.closing(worker.Runner(confined, packages=[NUMPY, ()])) as ran:
        ran.verify()
        grades = []
        for names in (NUMPY, ()):
            reward = process_config.GraderConfig(name="r", type="code", packages=names, wall_limit_s=100.0)
            program = "```python\nimport numpy\nprint(int(numpy.ones(3).sum()))\n```"
            columns = {"input_output": json.dumps({"inputs": [""], "outputs": ["3"]})}
            answer = base.Answer(prompt="", completion=program, columns=columns)
            grades.append(code_grader.CodeGrader(reward, run=ran).grade(answer).score)
        assert grades == [1.0, 0.0]
        assert not ran.survivors()


@pytest.mark.parametrize(("names", "score"), [(NUMPY, 1.0), ((), 0.0)])
def test_tests_of_a_repository_have_the_packages_that_their_reward_names(
    confined: profile.Confinement, tmp_path: pathlib.Path, names: tuple[str, ...], score: float
) -> None:
    def patient(program: suites.Suite, *, stdin: bytes, limits: programs.Limits) -> programs.Run:
        return programs.run(program, stdin=stdin, limits=dataclasses.replace(limits, wall_s=240.0), confined=confined)

    reward = process_config.GraderConfig(
        name="r", type="repository-tests", packages=names, cpu_limit_s=60.0, wall_limit_s=240.0
    )
    test_file = "import numpy as np\nfrom sums import total\n\ndef test_total():\n    assert total(np.ones(3)) == 3\n"
    columns = {
        "repository": {"files": {}, "test_files": {"test_it.py": test_file}, "tests": ["test_it.py::test_total"]}
    }
    completion = "```python sums.py\nimport numpy\n\ndef total(a):\n    return numpy.sum(a)\n```"
    answer = base.Answer(prompt="", completion=completion, columns=columns)
    assert repository_grader.RepositoryGrader(reward, run=patient, scratch=tmp_path).grade(answer).score == score
