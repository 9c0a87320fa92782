"""No log call and no error is made of a value that is a prompt, an answer, a gold, a record or a secret by its name,
and no boundary to code of others shows what was raised there but by `redaction`.

A reading of the sources, so that a new line is asked about when it is written; what is really reported is looked at
with marked texts by the tests named test_confidential.py.
"""

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
WORKERS = ROOT / "workers" / "rljob_workers"
_TEXTS = """
    prompt prompts prompt_text question messages content completion completions text texts answer answers gold golds
    solution solutions extracted output_text columns record row input_ids prompt_ids output_ids completion_ids
    token password secret secrets api_key environ stdin stdout stderr output
"""
TEXTS = frozenset(_TEXTS.split())
# Calls that show a number, a type or names of keys of what they are given.
TELLS_LITTLE = frozenset({"len", "type", "sum", "sorted", "brief", "describe", "_kind", "_has", "_name", "place"})
LOG_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
# vLLM is given ids, and the boundary to it shows what it said; a refusal of `screen.py` is a verdict's detail.
APART = frozenset(
    {
        WORKERS / "rollout" / "engines" / "vllm" / "engine.py",
        WORKERS / "verifier" / "graders" / "symbolic" / "screen.py",
    }
)
# Where texts pass through. The command line and the local runner talk to the person whose manifest it is.
ROLES = ("coordinator", "data", "rollout", "rpc", "trainer", "verifier", "weights")


def leaves(node: ast.AST) -> Iterator[str]:
    """Yield the names of the values that an expression shows: of a.b the b, of a["b"] the b."""
    if isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Subscript):
        yield from [str(node.slice.value)] if isinstance(node.slice, ast.Constant) else leaves(node.value)
    elif isinstance(node, ast.Call):
        called = next(leaves(node.func), "")
        if called not in TELLS_LITTLE:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from leaves(argument)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        yield from leaves(node.elt)
    else:
        for child in ast.iter_child_nodes(node):
            yield from leaves(child)


def logged(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every value in a log call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_CALLS:
            of_logger = next(leaves(node.func.value), "") in ("logger", "log")
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)) if of_logger else ():
                yield from ((node.lineno, name) for name in leaves(argument))


def raised(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every value that is formatted into an exception where it is raised."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.FormattedValue):
                    yield from ((node.lineno, name) for name in leaves(part.value))


def told_as_it_is(tree: ast.AST) -> Iterator[int]:
    """Yield the lines in handlers of any exception where the exception is shown, but by `redaction` or its type."""
    handlers = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    for handler in handlers:
        if handler.name is None or handler.type is None or "Exception" not in leaves(handler.type):
            continue
        for node in ast.walk(handler):
            formatted = isinstance(node, ast.FormattedValue) and handler.name in leaves(node.value)
            if isinstance(node, ast.expr) and (
                formatted or (isinstance(node, ast.Call) and _tells(node, handler.name))
            ):
                yield node.lineno


def _tells(call: ast.Call, name: str) -> bool:
    called = next(leaves(call.func), "")
    by_redaction = isinstance(call.func, ast.Attribute) and "redaction" in leaves(call.func.value)
    if by_redaction or called not in (*LOG_CALLS, "str", "repr"):
        return False
    stack = called == "exception" or any(keyword.arg == "exc_info" for keyword in call.keywords)
    return stack or any(name in leaves(argument) for argument in call.args)


def sources(*folders: pathlib.Path) -> list[pathlib.Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]


def sources_of_roles() -> list[pathlib.Path]:
    return [path for path in sources(*(WORKERS / role for role in ROLES)) if path not in APART]


def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.covers("security")
def test_no_log_call_is_given_a_text_or_a_secret() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources(ROOT / "workers", ROOT / "proto", ROOT / "operator")
        for line, name in logged(parsed(path))
        if name in TEXTS
    ]
    assert not found, f"log an id, a length or redaction.brief(...) instead: {found}"


def test_no_error_of_a_role_is_made_of_a_text_or_a_secret() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources_of_roles()
        for line, name in raised(parsed(path))
        if name in TEXTS
    ]
    assert not found, f"errors are logged: name the field, and redaction.brief(...) what is in it: {found}"


def test_what_code_of_others_raised_is_told_by_redaction() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}" for path in sources_of_roles() for line in told_as_it_is(parsed(path))]
    assert not found, f"its message may quote a prompt: use redaction.describe(error) and redaction.log(...): {found}"


@pytest.mark.parametrize(
    ("reading", "code"),
    [
        (logged, 'logger.info("asked %s", task.prompt_text)'),
        (logged, 'logger.warning(f"said {answer!r:.40}", extra={"group": group_id})'),
        (logged, 'logger.debug("%s", record["prompt"][:40])'),
        (logged, 'logger.error("refused", extra={"token": str(session.token)})'),
        (raised, 'raise errors.DataError(f"column is {str(columns[name])[:40]!r}")'),
        (raised, 'raise errors.DataError(f"holds {text[:60]!r}") from error'),
    ],
)
def test_a_text_in_a_call_is_seen(reading: object, code: str) -> None:
    assert callable(reading)
    assert [name for _, name in reading(ast.parse(code)) if name in TEXTS], code


@pytest.mark.parametrize(
    "told",
    [
        'raise E(f"raised {error}") from error',
        'logger.warning("raised %s", error)',
        'logger.exception("it raised")',
        'logger.error("it raised", exc_info=True)',
        "return str(error)",
    ],
)
def test_an_exception_that_is_told_as_it_is_is_seen(told: str) -> None:
    code = f"try:\n    run()\nexcept Exception as error:\n    {told}\n"
    assert list(told_as_it_is(ast.parse(code))) == [4]


@pytest.mark.parametrize(
    "code",
    [
        'logger.info("%d prompts, %s", len(prompts), answer.outcome)',
        'raise errors.DataError(f"no answer; it has {sorted(columns)}, not {redaction.brief(text)}")',
        'try:\n    run()\nexcept Exception as error:\n    redaction.log(logger, "it", error)\n'
        '    raise E(f"raised {redaction.describe(error)} {type(error).__name__}") from error',
    ],
)
def test_lengths_types_names_of_keys_and_what_redaction_tells_are_no_texts(code: str) -> None:
    tree = ast.parse(code)
    assert not [name for _, name in (*logged(tree), *raised(tree)) if name in TEXTS]
    assert not list(told_as_it_is(tree))
