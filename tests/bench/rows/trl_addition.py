"""The peer of row C-14: TRL's GRPOTrainer on the addition task, run in an environment of its own.

usage: trl_addition.py MODEL_DIR TRAIN_JSONL OUT_JSON SEED STEPS LEARNING_RATE

Same model folder, prompts, number of samples, answer length, stop token, learning rate and optimizer settings as the
addition example. TRL pads prompts and completions, as it does by default. Writes wall seconds and mean reward per step.
"""

import json
import pathlib
import sys
import time

PROMPTS_PER_STEP = 16
SAMPLES = 8
MAX_NEW_TOKENS = 8


def main(model_dir: str, train_path: str, out_path: str, seed: int, steps: int, learning_rate: float) -> None:
    """Train and write `{"load_s", "steps": [{"wall_s", "reward"}]}` to `out_path`."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    torch.set_num_threads(2)
    began = time.monotonic()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    newline = tokenizer("\n", add_special_tokens=False).input_ids
    records = [json.loads(line) for line in pathlib.Path(train_path).read_text().splitlines()]
    data = Dataset.from_list([{"prompt": record["prompt"], "answer": str(record["answer"])} for record in records])

    def exact(completions: list[str], answer: list[str], **_: object) -> list[float]:
        return [float(text.strip() == wanted) for text, wanted in zip(completions, answer, strict=True)]

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        """Notes when each step ended and what its mean reward was."""

        def __init__(self) -> None:
            self.rows: list[dict[str, float]] = []
            self.last = time.monotonic()

        def on_step_end(self, *_: object, **__: object) -> None:
            now = time.monotonic()
            self.rows.append({"wall_s": now - self.last})
            self.last = now

        def on_log(self, args: object, state: object, control: object, logs: dict[str, float], **_: object) -> None:
            if "reward" in logs:
                self.rows[len(self.rows) - 1]["reward"] = float(logs["reward"])

    clock = Clock()
    config = trl.GRPOConfig(
        output_dir=str(pathlib.Path(out_path).parent / "trl-out"),
        per_device_train_batch_size=32,
        gradient_accumulation_steps=PROMPTS_PER_STEP * SAMPLES // 32,
        num_generations=SAMPLES,
        max_completion_length=MAX_NEW_TOKENS,
        max_steps=steps,
        learning_rate=learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        loss_type="dapo",
        bf16=True,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        seed=seed,
        disable_tqdm=True,
        generation_kwargs={"eos_token_id": [tokenizer.eos_token_id, newline[-1]]},
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=exact, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock]
    )
    clock.last = time.monotonic()
    load_s = clock.last - began
    trainer.train()
    pathlib.Path(out_path).write_text(json.dumps({"load_s": load_s, "steps": clock.rows}))


if __name__ == "__main__":
    model, train, out, seed_text, steps_text, rate_text = sys.argv[1:]
    main(model, train, out, int(seed_text), int(steps_text), float(rate_text))
