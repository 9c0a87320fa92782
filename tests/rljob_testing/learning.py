"""Whether an algorithm learns: a tiny model is rewarded for even tokens. Only vLLM is played, by plain sampling.

Everything else is the product's: the manifest is resolved, the coordinator's rows and packing make the batch, the
DeepSpeed trainer updates. Run as `python -m rljob_testing.learning MODEL_DIR CASE...` in a process of its own, since
DeepSpeed takes one process group per process; prints one JSON line per case, its mean reward before each step.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
import transformers

from rljob_api import enums, process_config, resolve, types
from rljob_api.validation.load import load_manifest
from rljob_api.wire import codec
from rljob_testing import makers
from rljob_testing.trainer_makers import VOCAB
from rljob_workers.coordinator.batching import builder
from rljob_workers.coordinator.ledger import steps
from rljob_workers.runtime import clock
from rljob_workers.trainer import critic, learner
from rljob_workers.trainer.engine import deepspeed, schedule
from rljob_workers.trainer.model import reference

STEPS = 8
LONGEST = 4
Changes = dict[str, object]
_CRITIC: Changes = {"advantageEstimator": "ppo", "critic": {"learningRate": "1e-2"}}

CASES: dict[str, Changes] = {
    "grpo": {},
    "drgrpo": {"advantageEstimator": "drgrpo", "loss": {"aggregation": "Constant"}},
    "rloo": {"advantageEstimator": "rloo"},
    "liteppo": {"advantageEstimator": "liteppo"},
    "reinforcepp": {"advantageEstimator": "reinforcepp"},
    "reinforceppBaseline": {"advantageEstimator": "reinforceppBaseline", "gae": {"gamma": "0.99"}},
    "ppo": {**_CRITIC, "gae": {"lambda": "0.95"}},
    "ppo, minibatches and epochs": {**_CRITIC, "minibatches": 2, "epochs": 2},
    # With one update a step these would be one algorithm: r is 1, and so is every slope.
    "gspo": {"minibatches": 2, "loss": {"type": "gspo", "clipLow": "3e-2", "clipHigh": "4e-2"}},
    "cispo": {"minibatches": 2, "loss": {"type": "cispo", "clipLow": "1", "clipHigh": "4"}},
    "sapo": {"minibatches": 2, "loss": {"type": "sapo"}},
    "reinforce": {"minibatches": 2, "loss": {"type": "reinforce"}},
    "old samples, proximal recomputed": {"minibatches": 2},
    "old samples, proximal interpolated": {"minibatches": 2, "loss": {"proximal": "LogLinear"}},
    "old samples, two policies": {"minibatches": 2, "loss": {"proximal": "Behavior"}},
    "a teacher that learned it": {},
}
# Its rewards are read by no one: it learns from the model that the first case led to.
TAUGHT = "a teacher that learned it"
# In cases of old samples the sampler takes over the weights of every so many steps only.
REFRESH_STEPS = 3


class Sampler:
    """A plain copy of the policy that answers in `LONGEST` tokens, temperature 1."""

    def __init__(self, model_dir: pathlib.Path, seed: int) -> None:
        """Load the first weights."""
        self._model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        self._random = torch.Generator().manual_seed(seed)

    def follow(self, policy: deepspeed.Engine) -> None:
        """Take over the policy's weights."""
        own = self._model.state_dict()
        with torch.no_grad():
            policy.visit(list(own), lambda name, tensor: own[name].copy_(tensor))

    def save(self, folder: pathlib.Path, model_dir: pathlib.Path) -> None:
        """Write the weights as a model with the tokenizer of `model_dir`."""
        self._model.save_pretrained(folder)
        shutil.copy(model_dir / "tokenizer.json", folder)

    def group(self, index: int, *, size: int, version: int) -> types.PromptGroup:
        """Return a scored group for a random prompt."""
        prompt = torch.randint(1, VOCAB, (1, 3), generator=self._random).expand(size, -1)
        tokens, logprobs = prompt, torch.zeros(size, 0)
        for _ in range(LONGEST):
            with torch.no_grad():
                log_probs = torch.log_softmax(self._model(input_ids=tokens).logits[:, -1], dim=-1)
            taken = torch.multinomial(log_probs.exp(), 1, generator=self._random)
            tokens = torch.cat([tokens, taken], dim=1)
            logprobs = torch.cat([logprobs, log_probs.gather(1, taken)], dim=1)
        rows = tuple(
            makers.make_trajectory(
                prompt=tokens[row, :3].tolist(),
                completion=tokens[row, 3:].tolist(),
                logprobs=logprobs[row].tolist(),
                versions=version,
                reward=float((tokens[row, 3:] % 2 == 0).float().mean()),
                sample_index=row,
            )
            for row in range(size)
        )
        return dataclasses.replace(makers.make_group(group_id=f"g{index}"), trajectories=rows)


def resolved_job(model_dir: pathlib.Path, case: str, folder: pathlib.Path) -> resolve.ResolvedJob:
    """Return the configs of a job with the case's `spec.algorithm`."""
    algorithm: Changes = {"groupSize": 8, "promptsPerStep": 8, **CASES[case]}
    document = {
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "learning"},
        "spec": {
            "maxSteps": STEPS,
            "model": {"name": str(model_dir)},
            "data": {
                "template": "raw", "train": [{"name": "d", "path": "d.jsonl", "maxPromptTokens": 4}],
                "filterGroups": {"enabled": False},
            },
            "algorithm": algorithm,
            "async": {"maxOffPolicySteps": REFRESH_STEPS - 1},
            "rollout": {"sampling": {"maxTokens": LONGEST}},
            "verifier": {"rewards": [{"name": "even", "type": "exact"}]},
            "trainer": {
                "dtype": "float32", "optimizer": {"learningRate": "2e-2"}, "deepspeed": {"zeroStage": 0},
                "gradientCheckpointing": False, "maxTokensPerMicroBatch": 512,
            },
            **({"teacher": {"model": str(folder / "teacher")}} if case == TAUGHT else {}),
        },
    }  # fmt: skip
    return resolved(document, folder)


def resolved(document: Mapping[str, object], folder: pathlib.Path) -> resolve.ResolvedJob:
    """Return the configs of a manifest on this machine. Nothing is written; the folder only has a name in them."""
    manifest = load_manifest(json.dumps(document))
    placement = resolve.local_placement(
        manifest, uid="u", run_dir=str(folder), base_dir=str(folder), cache_dir=str(folder), ports=range(20),
        num_cores=1,
    )  # fmt: skip
    return resolve.resolve(manifest, placement)


def batch_of(
    groups: list[types.PromptGroup], step: int, version: int, found: resolve.ResolvedJob
) -> tuple[types.BatchHeader, list[types.MicroBatch], Mapping[str, Any]]:
    """Return what the coordinator would hand out for these groups of one version, and what it records of them.

    version: id of the version that sampled them, which is also the step that made it.
    """
    candidates = tuple(
        steps.Candidate(
            group_id=group.group_id, lease_order=order, min_step=version, finished_step=version, num_failures=0,
            queued_s=0.0, generate_started_at=0.0, generate_finished_at=0.0, verify_s=0.0,
            payload=codec.encode(group),
        )
        for order, group in enumerate(groups)
    )  # fmt: skip
    oldest = step - 1 - found.coordinator.spec.async_.max_off_policy_steps
    choice = steps.Choice(
        step=step, candidates=candidates, version_steps={version: version}, oldest_trained_step=max(0, oldest),
        taught=found.coordinator.spec.is_taught(step),
    )  # fmt: skip
    built = builder.build(choice, found.coordinator)
    packed = built.packed
    header = types.BatchHeader(
        kind=enums.BatchKind.BATCH, step=step, trainer_version=step - 1, num_updates=len(packed.minibatches),
        num_micro_batches=len(packed.micro_batches[0]), minibatches=packed.minibatches,
    )  # fmt: skip
    sent = [codec.decode_micro_batch(codec.encode_micro_batch(part)) for part in packed.micro_batches[0]]
    return header, sent, built.assembled.summary


def new_learner(
    config: process_config.TrainerConfig, model_dir: pathlib.Path
) -> tuple[deepspeed.Engine, learner.Learner]:
    """Return the policy and what updates it, with reference, teacher and critic as the config asks for."""
    device = torch.device("cpu")
    place = deepspeed.place_frozen(config, device)
    policy = deepspeed.Engine(config, model_dir, device)
    valued = None if config.spec.algorithm.critic is None else deepspeed.CriticEngine(config, model_dir, device)
    return policy, learner.Learner(
        engine=policy,
        reference=reference.load(config, device, place=place),
        teacher=reference.load_teacher(config, model_dir, device, place=place),
        critic=None if valued is None else critic.Critic(valued, config.spec, schedule.UpdateCount()),
        spec=config.spec,
        clock=clock.SystemClock(),
    )


def rewards_of(model_dir: pathlib.Path, case: str, folder: pathlib.Path) -> list[float]:
    """Train `STEPS` steps; return the mean reward of each step's samples."""
    found = resolved_job(model_dir, case, folder)
    seed = found.trainer.spec.seed
    torch.manual_seed(seed)
    policy, steps = new_learner(found.trainer, model_dir)
    sampler = Sampler(model_dir, seed)
    rewards: list[float] = []
    version, refresh = 0, REFRESH_STEPS if case.startswith("old samples") else 1
    for step in range(1, STEPS + 1):
        if (step - 1) % refresh == 0:
            sampler.follow(policy)
            version = step - 1
        groups = [
            sampler.group(index, size=found.coordinator.spec.algorithm.group_size, version=version)
            for index in range(found.coordinator.spec.algorithm.prompts_per_step)
        ]
        header, parts, summary = batch_of(groups, step, version, found)
        steps.learn(header, parts)
        rewards.append(summary["reward_mean"])
    if case == "grpo":
        sampler.follow(policy)
        sampler.save(folder / "teacher", model_dir)
    return rewards


@contextlib.contextmanager
def only_rank() -> Iterator[pathlib.Path]:
    """Make this process the only rank, on one thread and quiet, and yield a folder that goes at the end."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    os.environ.update({"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"})
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)  # type: ignore[attr-defined]  # exported, but not in its stubs
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield pathlib.Path(folder)
        dist.destroy_process_group()


def main() -> None:
    """Run the named cases."""
    with only_rank() as folder:
        for case in sys.argv[2:]:
            rewards = rewards_of(pathlib.Path(sys.argv[1]), case, folder)
            print(json.dumps({"case": case, "rewards": rewards}), flush=True)


if __name__ == "__main__":
    main()
