"""What runs inside a candidate's process: a script of the standard library alone.

`python -I -S -B candidate.py REQUEST_FD REPLY_FD`, or `... candidate.py --warm CONTROL_FD PARENT PACKAGES`, which
becomes `zygote.py`: then what follows happens in its forks. Reads one request (JSON: sources, mode, fn_name, arguments,
packages, nonce, parent, limits, confinement), has `enter.py` confine this process, says so, and becomes the program. It
holds one input and no expected output. Records of the reply carry the nonce; they can explain a failure, and what is
right is decided elsewhere by comparing data. But for the tests of a repository, with which the process becomes
`pytest_run.py`, and a command of an agent's shell, with which it becomes the shell.
"""

import ast
import importlib
import importlib.util
import json
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

ENTERED = "entered"
_NAMES = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
    " builtins typing"
)
NAMES = _NAMES.split()
# What programs of this lineage expect to find; docs/design/graders.md#s-6-2.
PREAMBLE = "".join(f"from {name} import *\n" for name in NAMES)
PREAMBLE += "".join(f"import {name}\n" for name in NAMES)
_RECURSION_LIMIT = 600_000
_NOT_COMPILED = (SyntaxError, ValueError, RecursionError, MemoryError)


def main() -> None:
    """Run one request: in this process, or in each fork of it."""
    launcher = sibling_module("enter")
    if sys.argv[1] != "--warm":
        become(int(sys.argv[1]), int(sys.argv[2]), launcher=launcher)
        return
    zygote = sibling_module("zygote")
    space = preamble()
    mapped_bytes = import_packages(json.loads(sys.argv[4]))
    ending = zygote.Ending(space)
    request_fd, reply_fd = zygote.forks(control_fd=int(sys.argv[2]), parent=int(sys.argv[3]), launcher=launcher)
    with ending:
        become(request_fd, reply_fd, launcher=launcher, space=space, mapped_bytes=mapped_bytes)


def become(
    request_fd: int,
    reply_fd: int,
    *,
    launcher: ModuleType,
    space: "dict[str, object] | None" = None,
    mapped_bytes: int = 0,
) -> None:
    """Confine this process and run the request in it; exit code 0 means that nothing was raised.

    space: the preamble's names if it ran already, and the packages are imported, for no one else. mapped_bytes: of the
    address space, which that took.
    """
    # A socket: the launcher needs the way back, and closes it.
    with open(request_fd, encoding="utf-8", closefd=False) as stream:
        request = json.load(stream)
    reply = Reply(reply_fd, request["nonce"])
    harness: ModuleType | None = None
    if space is None:
        # Before it is confined: afterwards each file that is looked for has to be asked for.
        if "tests" in request:
            sys.meta_path.insert(0, Packages(request["harness"]))
            harness = sibling_module("pytest_run")
        elif "command" not in request:
            space = preamble()
        mapped_bytes = import_packages(request["packages"])
    # What packages map, much of it address space that is never touched, is not the program's.
    request["memory_bytes"] += mapped_bytes
    launcher.enter(request, request_fd=request_fd, reply_fd=reply_fd)
    # First of all records, so that nothing of the program can unsay it.
    reply.send(ENTERED)
    if "command" in request:
        # Of what this process has open the shell gets the standard three.
        reply.close()
        # An interpreter ignores them, and what it becomes would, too.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request["folder"])
        os.execve(request["command"][0], request["command"], request["environment"])
    sys.argv = [""]
    if harness is not None:
        harness.run(request, reply)
        return
    compat = request["compat"]
    try:
        tree, program = chosen(request["sources"], request["fn_name"], compat=compat)
    except _NOT_COMPILED:
        reply.send("not_compiled")
        return
    assert space is not None, "a program has the preamble's names"
    # After the answer was compiled: what nests too deep for the compiler is a syntax error, and no crash.
    sys.setrecursionlimit(_RECURSION_LIMIT)
    if not request["fn_name"]:
        # A program's verdict is its output and its exit code: it has no channel.
        reply.close()
        run_program(program, space, compat=compat)
        return
    space["__name__"] = "answer"
    if not compat and not is_bound(tree, request["fn_name"]):
        reply.send("no_function")
        return
    call(program, space, request, reply)


def preamble() -> "dict[str, object]":
    """Return a module's namespace after the preamble."""
    space = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(compile(PREAMBLE, "<preamble>", "exec"), space)  # noqa: S102  # our own text
    return space


def import_packages(packages: "dict[str, object]") -> int:
    """Import what programs are to find (`load`, by the files of `modules`); return the bytes of address space it took.

    Raises ImportError, or whatever a package raises, and RuntimeError if one started threads, which no fork would have.
    """
    load, modules = packages["load"], packages["modules"]
    assert isinstance(load, list)
    assert isinstance(modules, dict)
    if not load:
        return 0
    before_bytes = address_space_bytes()
    # Last: a package can hide no module of the standard library.
    sys.meta_path.append(Packages(modules))
    for name in load:
        importlib.import_module(name)
        if len(os.listdir("/proc/self/task")) > 1:
            raise RuntimeError(f"package {name} started threads when it was imported")
    os.register_at_fork(after_in_child=reseed)
    return max(0, address_space_bytes() - before_bytes)


def reseed() -> None:
    """Give numpy's global generator a state of this process's own, as the standard library does with its own."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def address_space_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")


def sibling_module(name: str) -> ModuleType:
    """Return the module of a file that lies alongside this one, which is on no path."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None, "the name ends in .py"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Packages:
    """Finds packages by name, and nothing that lies alongside them."""

    def __init__(self, files: "dict[str, str]") -> None:
        self._files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":  # noqa: ARG002
        """Return where a package is; None for anything else."""
        file = self._files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


class Reply:
    """The framed channel back: one JSON record a line, each with the nonce of this run."""

    def __init__(self, descriptor: int, nonce: str) -> None:
        """Take over the descriptor."""
        self._descriptor, self._nonce = descriptor, nonce

    def send(self, status: str, value: object = None) -> None:
        record = json.dumps({"nonce": self._nonce, "status": status, "value": value}, allow_nan=False)
        data = memoryview(record.encode() + b"\n")
        while data:
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Leave nothing for the program to write to."""
        os.close(self._descriptor)


def chosen(sources: "list[str]", fn_name: str, *, compat: bool) -> "tuple[ast.Module, object]":
    """Return the first text that can be what is asked for, and its code; of texts none of which can, the first.

    Raises what compiling that one raises: SyntaxError, ValueError, RecursionError or MemoryError.
    """
    for source in sources if len(sources) > 1 else ():
        try:
            tree, program = compiled(source, fn_name, compat=compat)
        except _NOT_COMPILED:
            continue
        if is_bound(tree, fn_name) if fn_name else does_something(tree):
            return tree, program
    return compiled(sources[0], fn_name, compat=compat)


def compiled(source: str, fn_name: str, *, compat: bool) -> "tuple[ast.Module, object]":
    """Return a text's tree and code. Raises SyntaxError, ValueError, RecursionError or MemoryError."""
    tree = ast.parse(source)
    return tree, compile(tree, "<answer>", "exec") if fn_name else compile_program(tree, compat=compat)


def does_something(tree: ast.Module) -> bool:
    """Return whether a program calls anything when it is run: without a call nothing is read or printed.

    Sample output that happens to be Python (`3`, `YES`, `x = 5`) does not, nor do definitions alone.
    """
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # Its decorators are calls, its body is not run.
            if node.decorator_list:
                return True
        elif not isinstance(node, ast.Lambda):
            left.extend(ast.iter_child_nodes(node))
    return False


def compile_program(tree: ast.Module, *, compat: bool) -> object:
    """Return the code of a program. compat: its body runs inside a function, imports outside, a main guard opened."""
    if not compat:
        return compile(tree, "<answer>", "exec")
    body = list(tree.body)
    if body and is_main_guard(body[-1]):
        body[-1:] = body[-1].body  # type: ignore[attr-defined]  # is_main_guard looked
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    rest = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    wrapped = ast.parse("def wrapped_function():\n    pass\nwrapped_function()")
    wrapped.body[0].body = rest or wrapped.body[0].body  # type: ignore[attr-defined]  # a function definition
    tree = ast.Module(body=[*imports, *wrapped.body], type_ignores=[])
    return compile(ast.fix_missing_locations(tree), "<answer>", "exec")


def is_main_guard(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`."""
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and ast.unparse(test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def run_program(program: object, space: "dict[str, object]", *, compat: bool) -> None:
    """Run it between stdin and stdout. compat: any SystemExit is a good end."""
    try:
        exec(program, space)  # type: ignore[arg-type]  # noqa: S102  # a code object; this process is the program's
    except SystemExit:
        if not compat:
            raise
    sys.stdout.flush()


def call(program: object, space: "dict[str, object]", request: "dict[str, object]", reply: Reply) -> None:
    """Define, look up and call the function; its value is the last record."""
    name = str(request["fn_name"])
    try:
        exec(program, space)  # type: ignore[arg-type]  # noqa: S102  # a code object; this process is the program's
        solution = space.get("Solution")
        function = getattr(solution(), name, None) if isinstance(solution, type) else space.get(name)
        if not callable(function):
            reply.send("no_function")
            return
        value = function(*decoded(request["arguments"]))
        sys.stdout.flush()
        reply.send("returned", encoded(value, arrays=() if request["compat"] else array_types()))
    except Exception:  # noqa: BLE001  # the boundary of the program; what is no Exception ends the process
        reply.send("raised")


def is_bound(tree: ast.Module, name: str) -> bool:
    """Return whether the answer's own source binds the name: in class Solution if there is one, else in the module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Solution":
            return binds(node.body, name)
    return binds(tree.body, name)


def binds(body: "list[ast.stmt]", name: str) -> bool:
    """Return whether statements bind a name, in their branches too but not inside functions and classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == name:
                return True
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and inner.id == name:
                return True
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and inner.name == name:
                return True
            if isinstance(inner, ast.alias) and (inner.asname or inner.name.split(".")[0]) == name:
                return True
    return False


def array_types() -> "tuple[type, ...]":
    """Return the types of numpy's arrays and numbers, if the program may have some."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else (numpy.ndarray, numpy.generic)


def encoded(value: object, *, arrays: "tuple[type, ...]" = ()) -> object:
    """Return a value as JSON that keeps tuples and keys apart. Raises TypeError for what JSON has no form for.

    arrays: types of values that stand for the lists and numbers that they hold.
    """
    if isinstance(value, arrays):
        value = value.tolist()  # type: ignore[attr-defined]  # numpy's have it
    # Exact types: a subclass may lie about its members and its equality.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        members = [encoded(member, arrays=arrays) for member in value]  # type: ignore[attr-defined]  # a list or a tuple
        return members if type(value) is list else {"tuple": members}
    if isinstance(value, dict):
        pairs = value.items()
        return {"dict": [[encoded(key, arrays=arrays), encoded(member, arrays=arrays)] for key, member in pairs]}
    if isinstance(value, list | tuple):
        return encoded(list(value) if isinstance(value, list) else tuple(value), arrays=arrays)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def decoded(value: object) -> "tuple[object, ...]":
    """Return the arguments of a request; an object arrives as its pairs."""
    assert isinstance(value, list)
    return tuple(dict(item["dict"]) if isinstance(item, dict) and set(item) == {"dict"} else item for item in value)


if __name__ == "__main__":
    main()
