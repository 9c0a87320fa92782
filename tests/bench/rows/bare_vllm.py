"""The peer of C-13: vLLM's own engine in a loop, `concurrent` sequences at all times. Writes its token count to a file.

python bare_vllm.py MODEL PROMPTS.json COUNTER CONCURRENT MAX_TOKENS THREADS
"""

import itertools
import json
import os
import pathlib
import sys


def main() -> None:
    """Generate until killed."""
    model, prompts, counter, concurrent, max_tokens, threads = sys.argv[1:]
    os.environ |= {
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": threads,
    }
    from vllm import EngineArgs, LLMEngine, SamplingParams

    arguments = EngineArgs(
        model=model,
        dtype="bfloat16",
        max_model_len=256,
        max_num_seqs=int(concurrent),
        enforce_eager=True,
        enable_prefix_caching=True,
        # With its default of 128 these prompts would share no prefix, and the job would win by that alone.
        block_size=32,
        kv_cache_memory_bytes=1 << 29,
    )
    engine = LLMEngine.from_engine_args(arguments)
    params = SamplingParams(temperature=1.0, max_tokens=int(max_tokens), ignore_eos=True, logprobs=0)
    # Groups of eight samples, as the job has them.
    texts = itertools.chain.from_iterable(
        [text] * 8 for text in itertools.cycle(json.loads(pathlib.Path(prompts).read_text()))
    )
    number, running, made = itertools.count(), 0, 0
    seen: dict[str, int] = {}
    while True:
        while running < int(concurrent):
            engine.add_request(str(next(number)), next(texts), params)
            running += 1
        for output in engine.step():
            count = len(output.outputs[0].token_ids)
            made += count - seen.get(output.request_id, 0)
            seen[output.request_id] = count
            if output.finished:
                running -= 1
                del seen[output.request_id]
        pathlib.Path(counter).write_text(str(made))


if __name__ == "__main__":
    main()
