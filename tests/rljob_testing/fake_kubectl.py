"""A `kubectl` that answers from files and notes what it was asked."""

import json
import pathlib

# Prints the file named after its words but options and fails if there is none; `stderr` and `code` may lie alongside
# it.
KUBECTL = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/calls"
name=""
for word in "$@"; do
  case "$word" in -*) ;; *) name="$name.$word" ;; esac
done
if [ -f "$here/answer$name" ]; then cat "$here/answer$name"; exit 0; fi
echo "Error from server (NotFound): no$name" >&2
exit 1
"""


class FakeKubectl:
    """What the cluster answers."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Put the program into `folder`, which belongs at the head of the PATH."""
        self._folder = folder
        program = folder / "kubectl"
        program.write_text(KUBECTL)
        program.chmod(0o755)

    def answers(self, words: str, body: object) -> None:
        """`words` are those of the call without options; JSON unless `body` is text."""
        text = body if isinstance(body, str) else json.dumps(body)
        path = self._folder / f"answer.{words.replace(' ', '.')}"
        # A word may be a path.
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def calls(self) -> list[str]:
        """Every call, with its options."""
        calls = self._folder / "calls"
        return calls.read_text().splitlines() if calls.is_file() else []
