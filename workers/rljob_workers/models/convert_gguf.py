"""`python -m rljob_workers.models.convert_gguf FILE FOLDER`: dequantise a GGUF file into a Hugging Face folder, bf16.

Run as a child process by `builtin.py`: it is the only user of transformers' GGUF reader.
"""

import os
import sys
from pathlib import Path

from rljob_workers.runtime import boot


def convert(gguf: Path, folder: Path) -> None:
    """Write config, bf16 safetensors (tied weights once) and tokenizer of `gguf` into `folder`."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


if __name__ == "__main__":
    boot.die_with_parent()
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
