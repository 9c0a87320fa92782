"""TRL's side of the learning bench, run by `peer.py` in an environment that has TRL and nothing of this repository.

usage: trl_program.py MODEL_DIR QUESTIONS_JSON OUT_DIR SEED STEPS LEARNING_RATE MAX_TOKENS FD

Same model folder, questions in the same order, numbers of samples, answer length, learning rate and optimizer settings
as our side; float32, and as it comes else. The end token is the tokenizer's own, so nothing after it is trained.
Rewards are asked for on the socket FD, a line of JSON each way: our graders score both sides. Writes the last weights,
and cpu_s.json: the processor seconds of the steps, loading left out.
"""

import json
import pathlib
import socket
import sys
import time

SAMPLES = 8


def main(
    model_dir: str, questions: str, out: str, seed: int, steps: int, learning_rate: float, max_tokens: int, fd: int
) -> None:
    """Train `steps` steps and write the model to `out`."""
    import torch
    import transformers
    import trl
    from datasets import Dataset

    torch.set_num_threads(1)
    channel = socket.socket(fileno=fd).makefile("rw", encoding="utf-8")
    prompts = json.loads(pathlib.Path(questions).read_text(encoding="utf-8"))
    data = Dataset.from_list([{"prompt": prompt, "question": index} for index, prompt in enumerate(prompts)])

    def score(completions: list[str], question: list[int], **_: object) -> list[float]:
        channel.write(json.dumps({"questions": question, "completions": completions}) + "\n")
        channel.flush()
        rewards: list[float] = json.loads(channel.readline())
        return rewards

    config = trl.GRPOConfig(
        output_dir=out, per_device_train_batch_size=len(prompts) // steps * SAMPLES, num_generations=SAMPLES,
        max_completion_length=max_tokens, max_steps=steps, shuffle_dataset=False, learning_rate=learning_rate,
        lr_scheduler_type="constant", adam_beta1=0.9, adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0,
        temperature=1.0, beta=0.0, epsilon=0.2, loss_type="dapo", bf16=False, use_cpu=True,
        gradient_checkpointing=False, save_strategy="no", report_to=[], seed=seed, disable_tqdm=True,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    trainer = trl.GRPOTrainer(
        model=model, reward_funcs=score, args=config, train_dataset=data, processing_class=tokenizer
    )
    started = time.process_time()
    trainer.train()
    cpu_s = time.process_time() - started
    trainer.save_model(out)
    (pathlib.Path(out) / "cpu_s.json").write_text(json.dumps(cpu_s), encoding="utf-8")


if __name__ == "__main__":
    model, questions_path, out_dir, seed_text, steps_text, rate_text, tokens_text, fd_text = sys.argv[1:]
    main(
        model, questions_path, out_dir, int(seed_text), int(steps_text), float(rate_text), int(tokens_text),
        int(fd_text),
    )  # fmt: skip
