"""Regenerate the committed gRPC stubs next to the .proto files. Needs grpcio-tools (extra `dev`)."""

import sys
from pathlib import Path

WIRE = Path(__file__).parent / "v1"


def generate(out_root: Path) -> list[Path]:
    """Write `*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` for every .proto under `out_root` and return their paths."""
    from grpc_tools import protoc

    root = WIRE.parents[2]
    sources = sorted(str(path.relative_to(root)) for path in WIRE.glob("*.proto"))
    flags = [
        f"--proto_path={root}",
        f"--python_out={out_root}",
        f"--pyi_out={out_root}",
        f"--grpc_python_out={out_root}",
    ]
    if protoc.main(["protoc", *flags, *sources]) != 0:
        raise RuntimeError(f"protoc refused one of {sources}")
    return sorted((out_root / "rljob_api" / "wire" / "v1").glob("*_pb2*"))


if __name__ == "__main__":
    for written in generate(WIRE.parents[2] if len(sys.argv) < 2 else Path(sys.argv[1])):
        print(written)
