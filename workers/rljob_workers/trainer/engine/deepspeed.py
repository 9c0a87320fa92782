"""DeepSpeed set-up and the few verbs that the step loop needs of it. The only user of deepspeed.

ZeRO 0 to 3 by config, CPU (gloo) and CUDA (nccl) by the same code. Gradients are averaged over ranks by DeepSpeed, so
the loop multiplies its losses by `world_size`. Master weights and moments are fp32 in every mode; those of bf16 weights
begin where `masters.py` says, until a checkpoint brings its own.
"""

import contextlib
import logging
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from rljob_api import errors, process_config, types
from rljob_workers.trainer.engine import averaging, deepspeed_config, masters, mfu, schedule
from rljob_workers.trainer.model import adapters, batch_tensors, loading, logprobs, policy, reference, selftest

# DeepSpeed's autotuner, which nothing here uses, imports MLflow where it is installed: 0.7 s at each start.
_mlflow = sys.modules.setdefault("mlflow", None)  # type: ignore[arg-type]  # None: not to be imported
import deepspeed  # noqa: E402
from deepspeed.utils import safe_get_local_fp32_param, safe_set_local_fp32_param  # noqa: E402

if _mlflow is None:
    del sys.modules["mlflow"]

logger = logging.getLogger(__name__)

_TAG = "state"
# ZeRO-3 brings parameters together in groups of this many bytes, so that an export needs little memory.
_GATHER_BYTES = 512 << 20


class _Trained:
    """A module under DeepSpeed on this rank. Every method except `backward` of local data is collective."""

    def __init__(self, module: torch.nn.Module, config: process_config.TrainerConfig, device: torch.device) -> None:
        """Build the DeepSpeed engine. torch.distributed must be initialised."""
        self.device, self.rank, self.world_size = device, dist.get_rank(), dist.get_world_size()
        trainer = config.spec.trainer
        self._stage, self._dtype, self._numbers = trainer.deepspeed.zero_stage, trainer.dtype, trainer.optimizer
        self._average = averaging.RunningMean()
        # DeepSpeed would compile its shared-memory collectives with g++ at this point; gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._partly_frozen = len(trainable) < sum(1 for _ in module.parameters())
        settings = deepspeed_config.make(trainer)
        _place(module, settings, device, stage=self._stage)
        with self._updating():
            self._engine, self._optimizer, _, _ = deepspeed.initialize(
                model=module, model_parameters=trainable, config=settings
            )
        self._engine.train()
        # DeepSpeed allocates the moments by a step with zero gradients; counted, it would weaken the first updates.
        for state in self._engine.basic_optimizer.state.values():
            if "step" in state:
                state["step"].zero_()
        if trainer.dtype == "bfloat16":
            # Within the rounding intervals of their weights (masters.py).
            for name, part, start in self._masters():
                masters.spread(part, key=masters.key_of(config.spec.seed, name), start=start)
        if trainer.dtype == "bfloat16" and self._stage == 0:
            # Micro-batches then add up in fp32; stages 1 to 3 have their own fp32 accumulation buffers.
            for parameter in trainable:
                parameter.grad_dtype = torch.float32
        clips = deepspeed_config.clips_itself(trainer)
        self._clipper = _Clipper(self._optimizer, trainable, trainer.optimizer.max_grad_norm) if clips else None
        if trainer.dtype == "float32" and self._stage in (1, 2):
            # DeepSpeed looks for non-finite gradients in reduced precision only.
            self._optimizer.check_grad_overflow = True

    @property
    def _muon_factor(self) -> float:
        """Muon's learning rate by AdamW's; both have one schedule."""
        muon = self._numbers.muon
        return 1.0 if muon is None else muon.learning_rate / self._numbers.learning_rate

    def _updating(self) -> contextlib.AbstractContextManager[object]:
        # DeepSpeed's Muon is made for torch.compile, which needs a C++ compiler where a CPU computes.
        eager = self._numbers.muon is not None and self.device.type == "cpu"
        return torch.compiler.set_stance("force_eager") if eager else contextlib.nullcontext()

    def _masters(self) -> Iterator[tuple[str, torch.Tensor, int]]:
        """Yield this rank's part [n] of each master, fp32, and where in the whole it begins. What is written to a part
        is kept once the next one is taken.
        """
        whole = self._whole_masters() if self._stage == 0 else {}
        for name, parameter in self._engine.module.named_parameters():
            if not parameter.requires_grad:
                continue
            # DeepSpeed's own attributes, which torch's parameter does not declare.
            sharded: Any = parameter
            if self._stage == 0:
                yield name, whole[id(parameter)].data.view(-1), 0
            elif self._stage == 3:
                part = safe_get_local_fp32_param(parameter).clone()
                yield name, part, part.numel() * dist.get_rank(group=sharded.ds_process_group)
                safe_set_local_fp32_param(parameter, part)
            elif (mapping := sharded._hp_mapping) is not None:
                yield name, mapping.get_hp_fragment().data, mapping.lp_fragment_address.start

    def _whole_masters(self) -> dict[int, torch.Tensor]:
        """Return the masters of stage 0 by the id of their parameter; fp32 weights are their own."""
        if self._dtype == "float32":
            return {
                id(parameter): parameter for parameter in self._engine.module.parameters() if parameter.requires_grad
            }
        masters_of: dict[int, torch.Tensor] = {}
        for weights, copies in zip(self._optimizer.fp16_groups, self._optimizer.fp32_groups, strict=True):
            masters_of |= {id(weight): copy for weight, copy in zip(weights, copies, strict=True)}
        return masters_of

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of `loss`. From ZeRO-2 on this is collective: all ranks call it equally often."""
        self._engine.backward(loss)

    def step(self, learning_rate: float) -> schedule.StepOutcome:
        """Reduce, clip and update; a non-finite norm leaves parameters and moments as they are."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * (self._muon_factor if group.get("use_muon") else 1.0)
        with self._updating():
            self._engine.step()
        norm = self._clipper.norm if self._clipper else float(self._engine.get_global_grad_norm() or 0.0)
        overflow = bool(getattr(self._optimizer, "overflow", False))
        # An overflow that was found before the norm was taken leaves the last step's norm behind.
        norm = math.inf if overflow and math.isfinite(norm) else norm
        return schedule.StepOutcome(grad_norm=norm, applied=math.isfinite(norm))

    def add_to_average(self, *, first: bool) -> None:
        """Count the weights as they are into their mean, which begins with the `first` ones."""
        if first:
            self._average = averaging.RunningMean()
        self._average.add((name, part) for name, part, _ in self._masters())

    def take_average(self) -> None:
        """Put the mean in the place of the masters and forget it. The weights follow with the next update."""
        for name, part, _ in self._masters():
            part.copy_(self._average.means[name])
        self._average = averaging.RunningMean()

    def total(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.SUM)

    def largest(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], how: Any) -> list[float]:
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(reduced, op=how)
        return [float(value) for value in reduced.tolist()]

    def barrier(self) -> None:
        if self.world_size > 1:
            dist.barrier()

    def save(self, directory: pathlib.Path) -> None:
        """Write weights, masters, moments and means of what is trained; each rank its own part."""
        self._engine.save_checkpoint(str(directory), tag=_TAG, save_latest=False, exclude_frozen_parameters=True)
        self._average.save(self._average_file(directory))

    def load(self, directory: pathlib.Path) -> None:
        """Read what `save` wrote with the same number of ranks and ZeRO stage. Raises EngineError if it cannot."""
        loaded, _ = self._engine.load_checkpoint(str(directory), tag=_TAG, load_module_strict=not self._partly_frozen)
        if loaded is None:
            raise errors.EngineError(f"DeepSpeed could not load the checkpoint in {directory}")
        self._average = averaging.RunningMean.load(self._average_file(directory))
        # The moments are the checkpoint's; the numbers of the optimizer are the manifest's, as for the learning rate.
        for group in self._optimizer.param_groups:
            group["weight_decay"] = self._numbers.weight_decay
            if self._numbers.muon is not None and group.get("use_muon"):
                group["momentum"] = self._numbers.muon.momentum
            else:
                group.update(betas=self._numbers.betas, eps=self._numbers.eps)

    def _average_file(self, directory: pathlib.Path) -> pathlib.Path:
        return directory / f"average-{self.rank}.pt"


class Engine(_Trained):
    """One rank's policy and its optimizer."""

    def __init__(
        self,
        config: process_config.TrainerConfig,
        model_dir: pathlib.Path,
        device: torch.device,
        *,
        adapter: adapters.Adapter | None = None,
    ) -> None:
        """adapter: what is trained instead of the model's own weights. Raises ManifestError if the model cannot be
        loaded.
        """
        model = loading.load_model(model_dir, config.spec, device, adapter=adapter)
        # Sizes before ZeRO-3 leaves each rank its part.
        self.accelerator = _accelerator(model, config, device)
        self._policy = policy.Policy(
            model,
            temperature=config.spec.rollout.sampling.temperature,
            chunk_tokens=config.spec.trainer.logits_chunk_tokens,
            pixels=loading.pixels_of(model, model_dir),
        )
        tensors = self._policy.named_tensors()
        self._saved = adapters.SavedNames(tensors.items()) if adapter else loading.SavedNames(model, tensors)
        super().__init__(self._policy, config, device)

    def forward(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        scored, entropies, _ = self._engine(*tensors.inputs)
        return scored, entropies

    def forward_taught(
        self, tensors: batch_tensors.BatchTensors, lesson: logprobs.Likeliest
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scored, entropies, agreements = self._engine(*tensors.inputs, lesson=lesson)
        return scored, entropies, agreements

    def score(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        with torch.no_grad():
            return self.forward(tensors)[0]

    def score_without_adapter(self, tensors: batch_tensors.BatchTensors) -> torch.Tensor:
        """Return logprobs [N] of the model as its files have it. Collective, as `forward` is."""
        with self._policy.without_adapter():
            return self.score(tensors)

    def score_plainly(self, row: selftest.Row) -> torch.Tensor:
        with self._policy.plain(), torch.no_grad():
            scored: torch.Tensor = self._engine(row.tokens, row.position_ids, None, row.predictors, row.targets)[0]
        return scored

    @property
    def model(self) -> policy.Facts:
        return self._policy.facts

    def check_files(self, layout: types.Layout) -> None:
        """Raise WeightsError if the files and the model do not hold the same tensors."""
        if problem := self._saved.problem(layout, self._policy.trained_names()):
            raise errors.WeightsError(f"{self.model.name}: {problem}")

    def visit(self, names: Sequence[str], receive: Callable[[str, torch.Tensor], None]) -> None:
        """Call `receive(name, whole tensor)` for each name of the files, a tensor of the model after the other.

        Raises WeightsError for a name the model lacks.
        """
        tensors = self._policy.named_tensors()
        selected = frozenset(names)
        sources = dict.fromkeys(self._saved.source(name) for name in names)
        for group in _groups(sources, tensors):
            with self._gathered([tensors[name] for name in group]):
                for source in group:
                    for name, part in self._saved.parts(source, tensors[source].detach()).items():
                        if name in selected:
                            receive(name, part)

    @contextlib.contextmanager
    def _gathered(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        if self._stage < 3:
            yield
            return
        partitioned = [tensor for tensor in tensors if hasattr(tensor, "ds_id")]
        with deepspeed.zero.GatheredParameters(partitioned):
            yield


class CriticEngine(_Trained):
    """One rank's value model, which starts as the policy with a new head, and its optimizer."""

    def __init__(self, config: process_config.TrainerConfig, model_dir: pathlib.Path, device: torch.device) -> None:
        """Raises ManifestError if the model cannot be loaded."""
        super().__init__(policy.ValueModel(loading.load_model(model_dir, config.spec, device)), config, device)

    def values(self, tensors: batch_tensors.BatchTensors) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, ends = self._engine(
            tensors.tokens, tensors.position_ids, tensors.plan, tensors.predictors, tensors.ends
        )
        return tokens, ends


def _place(module: torch.nn.Module, settings: deepspeed_config.Config, device: torch.device, *, stage: int) -> None:
    """Bring the weights, which are mapped from their files, to where this rank holds them, in place.

    DeepSpeed would bring the whole model to the device before it divides it, and give each rank a copy of frozen
    weights of its own, although all have read the same files.
    """
    if stage == 3:
        deepspeed.zero.Init(module=module, config_dict_or_path=settings)
        for buffer in module.buffers():
            buffer.data = buffer.data.to(device)
        return
    for parameter in module.parameters():
        if not parameter.requires_grad:
            # DeepSpeed's mark of weights that it does not send to the other ranks.
            parameter.ds_optim_param = True  # type: ignore[attr-defined]


def place_frozen(config: process_config.TrainerConfig, device: torch.device) -> reference.Place:
    """Return what makes, of a module that is never trained, one to call in its place: on this rank's device or, under
    ZeRO-3, divided among the ranks as what is trained is. Calls are collective then.
    """

    def place(module: torch.nn.Module) -> torch.nn.Module:
        module.eval().requires_grad_(False)
        if config.spec.trainer.deepspeed.zero_stage < 3:
            return module.to(device)
        settings = deepspeed_config.frozen(config.spec.trainer)
        _place(module, settings, device, stage=3)
        engine: torch.nn.Module = deepspeed.initialize(model=module, config=settings)[0]
        # DeepSpeed's returns nothing.
        engine.eval()
        return engine

    return place


class _Clipper:
    """Clips in a hook of the optimizer, after the reduction. A non-finite norm drops the gradients: AdamW skips."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor], max_norm: float) -> None:
        self.norm = 0.0
        self._parameters, self._max_norm = parameters, max_norm
        optimizer.register_step_pre_hook(self._clip)

    def _clip(self, _optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        self.norm = float(norm)
        if not math.isfinite(self.norm):
            for parameter in self._parameters:
                parameter.grad = None
        elif self._max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, norm)


def _accelerator(model: Any, config: process_config.TrainerConfig, device: torch.device) -> mfu.Accelerator | None:
    if device.type != "cuda":
        return None
    peak = mfu.dense_bf16_peak(torch.cuda.get_device_name(device)) if config.spec.trainer.dtype == "bfloat16" else None

    def peak_memory() -> tuple[int, int]:
        peaks = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        return peaks

    return mfu.Accelerator(peak_flops=peak, size=mfu.model_size(model), peak_memory=peak_memory)


def _groups(names: Iterable[str], tensors: dict[str, torch.Tensor]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in names:
        # Under ZeRO-3 a parameter's own size is 0 and ds_numel its true one.
        size += getattr(tensors[name], "ds_numel", tensors[name].numel()) * tensors[name].element_size()
        group.append(name)
        if size >= _GATHER_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
