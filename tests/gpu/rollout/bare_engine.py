"""vLLM's own engine in a loop, with the arguments that a rollout gives it. Writes output tokens per second to a file.

python bare_engine.py MODEL CONCURRENT MAX_TOKENS WINDOW_S FILE
"""

import itertools
import os
import pathlib
import random
import sys
import time


def main() -> None:
    """Generate for half a window and then a window, which counts."""
    model, concurrent, max_tokens, window_s, target = sys.argv[1:]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    if on_cpu:
        os.environ |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    arguments = EngineArgs(
        model=model,
        dtype="bfloat16",
        max_model_len=256 if on_cpu else 2048,
        max_num_seqs=int(concurrent),
        enforce_eager=on_cpu,
        enable_prefix_caching=True,
        gpu_memory_utilization=0.5,
        **({"block_size": 32, "kv_cache_memory_bytes": 1 << 28} if on_cpu else {}),
    )
    engine = LLMEngine.from_engine_args(arguments)
    params = SamplingParams(temperature=1.0, max_tokens=int(max_tokens), ignore_eos=True, logprobs=0, detokenize=False)
    rng = random.Random(0)
    texts = itertools.cycle([[rng.randrange(1, 500) for _ in range(64)] for _ in range(64)])
    number, running, made = itertools.count(), 0, 0
    seen: dict[str, int] = {}
    began, before, window = time.monotonic(), 0, float(window_s)
    counting = False
    while True:
        while running < int(concurrent):
            engine.add_request(str(next(number)), {"prompt_token_ids": next(texts)}, params)
            running += 1
        for output in engine.step():
            count = len(output.outputs[0].token_ids)
            made += count - seen.get(output.request_id, 0)
            seen[output.request_id] = count
            if output.finished:
                running -= 1
                del seen[output.request_id]
        elapsed = time.monotonic() - began
        if not counting and elapsed >= window / 2:
            began, before, counting = time.monotonic(), made, True
        elif counting and elapsed >= window:
            break
    pathlib.Path(target).write_text(str((made - before) / elapsed))


if __name__ == "__main__":
    main()
