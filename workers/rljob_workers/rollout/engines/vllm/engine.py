"""vLLM's asynchronous engine, in process, behind our `Engine` protocol. The only importer of vllm besides its child.

The engine process is started by a thread that lives as long as this object: the kernel kills the child when the
THREAD that started it ends. Every failure of vLLM becomes EngineError here, and nowhere else.
"""

import asyncio
import concurrent.futures
import dataclasses
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rljob_api import enums, errors, types
from rljob_api.manifest.model import ALL_LINEAR
from rljob_api.manifest.rollout import EngineSpec
from rljob_workers.data import pictures
from rljob_workers.models import families, vision
from rljob_workers.rollout import generation
from rljob_workers.rollout.engines import base, prefixes
from rljob_workers.rollout.engines.vllm import fork_server, metrics, patches
from rljob_workers.runtime import device, machine
from rljob_workers.weights import image

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.stats import RequestStateStats

T = TypeVar("T")

# With 128, vLLM's default on CPUs, short prompts share no prefix.
CPU_BLOCK_TOKENS, SMALL_BLOCK_TOKENS = 32, 16
CPU_MAX_KV_BYTES = 4 << 30
# What vLLM's kernels are made for.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_OURS = (
    "model", "dtype", "max_model_len", "max_num_seqs", "enforce_eager", "tensor_parallel_size", "logprobs_mode",
    "distributed_executor_backend", "worker_extension_cls", "weight_transfer_config", "generation_config",
    "enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank", "lora_target_modules", "scheduling_policy",
    "limit_mm_per_prompt",
)  # fmt: skip


class VllmEngine:
    """One AsyncLLM. Methods are for one event loop; construction and shutdown run on the keeper thread."""

    def __init__(self, settings: base.Settings) -> None:
        """Nothing starts before `start`."""
        self._settings = settings
        self._keeper = concurrent.futures.ThreadPoolExecutor(1, "engine-keeper")
        self._llm: AsyncLLM | None = None
        self._running: set[str] = set()
        self._interrupted: set[str] = set()
        self._finished_tokens = self._prompt_tokens = 0
        self._prefixes = prefixes.Prefixes(block_tokens=CPU_BLOCK_TOKENS)
        self._has_adapter = False
        self._picture_tokens: vision.PictureTokens | None = None

    async def start(self) -> None:
        """Start the engine process, load the model files, map the image."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._llm = await self._on_keeper(self._build)
        self._picture_tokens = vision.tokens_of(families.read(self._settings.model))
        self._prefixes = prefixes.Prefixes(block_tokens=self._llm.vllm_config.cache_config.block_size)
        self._has_adapter = False
        settings = self._settings
        if settings.engine.tensor_parallel_size > 1:
            await self._ask(self._llm.collective_rpc("rljob_install_weight_engine"))
        info = {
            "path": settings.image_path,
            "num_bytes": settings.image_bytes,
            "progress_path": settings.progress_path,
        }
        await self._ask(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info)))

    async def generate(
        self, request: generation.GenerationRequest, *, version: types.VersionId
    ) -> generation.GenerationResult:
        """Generate one completion; cancelling aborts it inside the engine."""
        llm, began = self._engine(), time.monotonic()
        prompt = {"cache_salt": str(version), **self._shown(request)}
        repeated_tokens = self._prefixes.ask(request.input_ids, version=version)
        self._running.add(request.rid)
        try:
            final = None
            async for output in llm.generate(
                prompt,  # type: ignore[arg-type]
                _params(request),
                request.rid,
                lora_request=_lora_request(version) if self._has_adapter else None,
                priority=request.priority,
            ):
                final = output
                if request.on_tokens is not None and not output.finished:
                    request.on_tokens(tuple(output.outputs[0].token_ids))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # boundary: vLLM raises whatever its layers raise
            raise errors.EngineError(f"generation failed: {type(error).__name__}: {error}") from error
        finally:
            self._running.discard(request.rid)
            interrupted = request.rid in self._interrupted
            self._interrupted.discard(request.rid)
        if final is None or len(final.outputs) != 1:
            raise errors.EngineError("the engine ended a request without an output")
        if request.pictures and tuple(final.prompt_token_ids or ()) != request.input_ids:
            raise errors.EngineError("the engine read other tokens for the pictures of a prompt than the trainer would")
        result = dataclasses.replace(
            _result(final.outputs[0], final.metrics, latency_s=time.monotonic() - began),
            repeated_tokens=repeated_tokens,
            cached_tokens=final.num_cached_tokens or 0,
        )
        # Of the last token nothing was computed.
        self._prefixes.add(request.input_ids + result.output_ids[:-1], version=version)
        # vLLM's own aborts are failures, only ours are interruptions: an answer that is never kept must not continue.
        if interrupted and result.stop_reason == "abort":
            result = dataclasses.replace(result, stop_reason=generation.INTERRUPT)
        self._finished_tokens += len(result.output_ids)
        self._prompt_tokens += len(request.input_ids)
        return result

    def _shown(self, request: generation.GenerationRequest) -> dict[str, object]:
        """Return the prompt's ids and its pictures. vLLM itself repeats a picture's token."""
        if not request.pictures:
            return {"prompt_token_ids": list(request.input_ids)}
        if self._picture_tokens is None:
            raise errors.EngineError("a prompt has pictures, and the model reads none")
        try:
            decoded = [pictures.decode(data, "a picture of a prompt") for data in request.pictures]
        except errors.DataError as error:
            raise errors.EngineError(str(error)) from error
        ids = self._picture_tokens.collapsed(request.input_ids, len(decoded))
        return {"prompt_token_ids": list(ids), "multi_modal_data": {"image": decoded}}

    def num_running(self) -> int:
        return len(self._running)

    def num_generated(self) -> int:
        """Return finished tokens plus those of running requests."""
        if self._llm is None:
            return self._finished_tokens
        states = list(self._llm.output_processor.request_states.values())
        return self._finished_tokens + sum(s.detokenizer.num_output_tokens() for s in states if s.detokenizer)

    def num_prompt_tokens(self) -> int:
        return self._prompt_tokens

    def alive(self) -> bool:
        return self._llm is not None and not self._llm.errored

    async def pause(self, *, clear_cache: bool) -> None:
        """Freeze running requests. Asks the core directly: the public call sleeps 20 ms for cosmetic reasons."""
        await self._ask(self._engine().engine_core.pause_scheduler_async(mode="keep", clear_cache=clear_cache))

    async def resume(self) -> None:
        await self._ask(self._engine().resume_generation())

    async def load(self, layout: types.Layout) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        lora = self._settings.lora
        info = {
            "names": [tensor.name for tensor in layout.tensors],
            "dtypes": [tensor.dtype for tensor in layout.tensors],
            "shapes": [list(tensor.shape) for tensor in layout.tensors],
            "offsets": [tensor.offset for tensor in layout.tensors],
            "alpha": 0 if lora is None else lora.alpha,
        }
        await self._ask(self._engine().start_weight_update())
        await self._ask(self._engine().update_weights(WeightTransferUpdateRequest(update_info=info)))

    def loaded_bytes(self) -> int:
        return self._settings.loaded_bytes()

    async def verify(self) -> None:
        """Finish the update; the engine process checks what was consumed."""
        if self._settings.lora is None:
            await self._ask(self._engine().finish_weight_update())
        else:
            await self._ask(self._engine().collective_rpc("rljob_finish_adapter"))
            # Before the first one an adapter changes nothing, and requests name none.
            self._has_adapter = True

    async def commit(self, version: types.VersionId) -> None:
        """Set the label to the decimal id."""
        await self._ask(self._engine().update_weight_version(str(version)))

    async def repair(self) -> None:
        """Reset layers that a broken load left behind."""
        await self._ask(self._engine().collective_rpc("rljob_reset_reload"))

    async def abort_all(self) -> None:
        """Abort all requests; what they sampled is theirs."""
        self._interrupted |= self._running
        await self._ask(self._engine().abort(list(self._running)))

    async def restart(self) -> None:
        await self.close_engine()
        await self.start()

    async def close_engine(self) -> None:
        """End the engine process but keep the thread."""
        llm, self._llm = self._llm, None
        if llm is not None:
            await self._on_keeper(llm.shutdown)
            await self._on_keeper(functools.partial(patches.end_context, llm))
            patches.disarm_finaliser(llm)

    async def close(self) -> None:
        """End the engine process and the thread."""
        await self.close_engine()
        self._keeper.shutdown(wait=False)

    def _engine(self) -> "AsyncLLM":
        if self._llm is None:
            raise errors.EngineError("the engine is not running")
        return self._llm

    async def _on_keeper(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._keeper, work)
        except errors.RLJobError:
            raise
        except Exception as error:  # boundary: vLLM raises whatever its layers raise
            raise errors.EngineError(f"the engine process failed: {type(error).__name__}: {error}") from error

    async def _ask(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except asyncio.CancelledError:
            raise
        except Exception as error:  # boundary: a failed utility call of vLLM is a bare Exception
            raise errors.EngineError(f"{type(error).__name__}: {error}") from error

    def _build(self) -> "AsyncLLM":
        from vllm.v1.engine.async_llm import AsyncLLM

        patches.time_tokens()
        patches.read_pictures_without_torchvision()
        return AsyncLLM.from_engine_args(_engine_args(self._settings))


def _engine_args(settings: base.Settings) -> "AsyncEngineArgs":
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.platforms import current_platform

    from rljob_workers.rollout.engines.vllm import worker

    config = settings.engine
    single = config.tensor_parallel_size == 1
    extension = worker.WorkerExtension
    dtype: str = config.dtype
    if current_platform.is_cpu():
        dtype = machine.dtype_for_this_cpu(dtype)
    args = AsyncEngineArgs(
        model=str(settings.model),
        dtype=dtype,  # type: ignore[arg-type]  # a Literal there, checked by the manifest here
        trust_remote_code=settings.trust_remote_code,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        tensor_parallel_size=config.tensor_parallel_size,
        enforce_eager=config.enforce_eager or current_platform.is_cpu(),
        kv_cache_dtype=config.kv_cache_dtype,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",
        scheduling_policy="priority",
        worker_extension_cls=f"{extension.__module__}.{extension.__qualname__}",
        distributed_executor_backend=(worker.RolloutExecutor if single else worker.RolloutMultiprocExecutor),
        enable_log_requests=False,
    )
    if vision.reads_pictures(families.read(settings.model)):
        args.limit_mm_per_prompt = {"image": enums.MAX_PICTURES}
    lora = settings.lora
    if single:
        args.weight_transfer_config = WeightTransferConfig(backend=worker.WEIGHTS if lora is None else worker.ADAPTER)
    if lora is not None:
        args.enable_lora, args.max_loras = True, 1
        args.max_lora_rank = next(rank for rank in _RANKS if rank >= lora.rank)  # type: ignore[misc]  # a Literal there
        if lora.targets != (ALL_LINEAR,):
            # Layers that no adapter reaches then cost nothing; otherwise each adds one of zeros.
            args.lora_target_modules = list(lora.targets)
    if config.gpu_memory_utilization is not None:
        args.gpu_memory_utilization = config.gpu_memory_utilization
    if current_platform.is_cpu():
        args.block_size = cpu_block_tokens(config, dtype)
        args.kv_cache_memory_bytes = settings.kv_cache_bytes or cpu_kv_bytes(settings.model, config, dtype)
    elif settings.kv_cache_bytes:
        args.kv_cache_memory_bytes = settings.kv_cache_bytes
    return _with_extra(args, config.extra_args)


def _with_extra(args: "AsyncEngineArgs", extra: Mapping[str, object]) -> "AsyncEngineArgs":
    for key, value in extra.items():
        if key in _OURS or not hasattr(args, key):
            raise errors.ManifestError(
                f"spec.rollout.engine.extraArgs.{key} is {value!r}, but "
                + ("it is set from other fields" if key in _OURS else "vLLM has no such engine argument")
            )
        setattr(args, key, value)
    return args


def cpu_block_tokens(config: EngineSpec, dtype: str) -> int:
    """Return the size of a block, the unit in which answers of a group share their prompt: each computes what is behind
    the last whole block by itself, with short answers most of all that is computed.

    Blocks of 16 were as fast as of 32 with prompts of 500 tokens (AVX-512); kernels of AMX and of other processors want
    32. Workers of tensor parallelism do without our patch that lets 16 pass.
    """
    import torch
    from vllm.v1.attention.backends import cpu_attn

    isa = cpu_attn._get_attn_isa(getattr(torch, dtype), CPU_BLOCK_TOKENS)
    is_small = isa == "vec" and config.tensor_parallel_size == 1 and config.kv_cache_dtype == "auto"
    return SMALL_BLOCK_TOKENS if is_small else CPU_BLOCK_TOKENS


def cpu_kv_bytes(model: Path, config: EngineSpec, dtype: str) -> int:
    """Return a KV size: all sequences at full length and a quarter more for shared prefixes, at most 4 GiB.

    bytes = sequences * length * layers * 2 * kv_heads * head_dim * width of `dtype`, lengths rounded up to a block.
    """
    hf: Mapping[str, Any] = vision.text_config(families.read(model))
    if "num_attention_heads" not in hf:
        # A LLaVA of the hub leaves out what the library has as a default.
        from transformers import CONFIG_MAPPING

        hf = CONFIG_MAPPING[str(hf["model_type"])](**hf).to_dict()
    heads = int(hf["num_attention_heads"])
    head_dim = int(hf.get("head_dim") or int(hf["hidden_size"]) // heads)
    per_token = int(hf["num_hidden_layers"]) * 2 * int(hf.get("num_key_value_heads") or heads) * head_dim
    length = -(-config.max_model_len // CPU_BLOCK_TOKENS) * CPU_BLOCK_TOKENS
    return min(CPU_MAX_KV_BYTES, config.max_num_seqs * length * per_token * image.WIDTHS[dtype] * 5 // 4)


def _lora_request(version: types.VersionId) -> "LoRARequest":
    from vllm.lora.request import LoRARequest

    from rljob_workers.rollout.engines.vllm import adapter_engine

    # The name is part of the keys of the prefix cache. The path is never opened, since the slot is filled before anyone
    # asks; where it were not, an absolute one keeps vLLM from asking a hub.
    return LoRARequest(
        lora_name=f"version-{version}", lora_int_id=adapter_engine.ADAPTER_ID, lora_path="/nonexistent/adapter"
    )


def _params(request: generation.GenerationRequest) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    return SamplingParams(
        n=1,
        temperature=0.0 if sampling.greedy else sampling.temperature,
        top_p=1.0 if sampling.greedy else sampling.top_p,
        top_k=0 if sampling.greedy else sampling.top_k,
        min_p=0.0 if sampling.greedy else sampling.min_p,
        seed=request.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        include_stop_str_in_output=sampling.include_stop,
        # Only the sampled token's own log-probability.
        logprobs=0,
        # Stop strings are found in text; without them no one reads the engine's text.
        detokenize=bool(sampling.stop),
        output_kind=RequestOutputKind.FINAL_ONLY if request.on_tokens is None else RequestOutputKind.CUMULATIVE,
    )


def _result(
    output: "CompletionOutput", times: "RequestStateStats | None", *, latency_s: float
) -> generation.GenerationResult:
    """Return what vLLM sampled; `times` is missing where extraArgs switch its statistics off, and the gaps with it."""
    ids = tuple(output.token_ids)
    matched = output.stop_reason if isinstance(output.stop_reason, str) else ""
    return generation.GenerationResult(
        output_ids=ids,
        logprobs=_logprobs(output, ids),
        versions=_versions(output, len(ids)),
        stop_reason=output.finish_reason or "",
        matched_stop=matched,
        latency_s=latency_s,
        ttft_s=times.first_token_latency if times else 0.0,
        itl_s=generation.gaps_s(patches.token_times_s(times, count=len(ids))),
    )


def _logprobs(output: "CompletionOutput", ids: tuple[int, ...]) -> tuple[float, ...]:
    rows = [row or {} for row in output.logprobs or ()]
    if len(rows) != len(ids):
        raise errors.EngineError(f"{len(ids)} tokens came with {len(rows)} logprobs")
    try:
        return tuple(float(row[token].logprob) for row, token in zip(rows, ids, strict=True))
    except KeyError as error:
        raise errors.EngineError(f"the logprob of sampled token {error} is missing") from error


def _versions(output: "CompletionOutput", count: int) -> tuple[int, ...]:
    versions: list[int] = []
    for span in output.weight_versions or ():
        if span.start != len(versions) or not span.version.isdecimal():
            raise errors.EngineError(f"weight version span {span} does not follow token {len(versions)} or has no id")
        versions.extend([int(span.version)] * (span.end - span.start))
    if len(versions) != count:
        raise errors.EngineError(f"weight versions cover {len(versions)} of {count} tokens")
    return tuple(versions)


REGISTRATION = base.Registration(
    environment=lambda num_threads: device.engine_environment(
        num_threads=num_threads, kind=device.engine_kind("vllm") or "cpu"
    ),
    make=VllmEngine,
    expose_metrics=metrics.expose,
    serves_adapters=True,
    prepare=fork_server.start,
)
