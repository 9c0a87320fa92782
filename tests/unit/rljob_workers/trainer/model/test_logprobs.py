import pytest
import torch

from rljob_workers.trainer.model import logprobs


def reference(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    return log_probs.gather(1, targets[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(-1)


def case(rows: int = 40, vocab: int = 50) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 8, generator=generator, requires_grad=True)
    weight = torch.randn(vocab, 8, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(0, vocab, (rows,), generator=generator)


@pytest.mark.covers("algorithms 1")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk_tokens", [1000, 40, 7, 1])
def test_values_and_gradients_do_not_depend_on_chunks_and_equal_log_softmax(
    temperature: float, chunk_tokens: int
) -> None:
    hidden, weight, targets = case()
    weights = torch.linspace(-1.0, 1.0, len(targets))
    found = logprobs.selected_logprobs(
        lambda states: states @ weight.T, hidden, targets, temperature=temperature, chunk_tokens=chunk_tokens
    )
    expected = reference(hidden @ weight.T, targets, temperature)
    gradients = []
    for logprob, entropy in (found, expected):
        gradients.append(torch.autograd.grad((logprob * weights + entropy * weights.flip(0)).sum(), (hidden, weight)))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("used", [0, 1])
def test_an_output_that_the_loss_ignores_gets_no_gradient(used: int) -> None:
    hidden, weight, targets = case()
    found = logprobs.SelectedLogSoftmax.apply(hidden @ weight.T, targets, 1.0)
    expected = reference(hidden @ weight.T, targets, 1.0)
    ours = torch.autograd.grad(found[used].sum(), hidden)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(expected[used].sum(), hidden)[0], rtol=1e-5, atol=1e-5)


def test_bf16_logits_are_normalised_in_fp32() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    found, entropy = logprobs.SelectedLogSoftmax.apply(logits, torch.tensor([1, 2, 3, 4]), 1.0)
    expected = reference(logits.float(), torch.tensor([1, 2, 3, 4]), 1.0)
    assert found.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(found, expected[0], rtol=1e-6, atol=1e-6)


def test_two_equal_logits_have_the_entropy_of_a_coin() -> None:
    _, entropy = logprobs.SelectedLogSoftmax.apply(torch.zeros(1, 2), torch.tensor([0]), 1.0)
    assert float(entropy) == pytest.approx(0.6931, abs=1e-4)


def test_only_one_chunk_of_logits_is_alive_at_a_time() -> None:
    hidden, weight, targets = case(rows=20)
    seen: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return states @ weight.T

    found, _ = logprobs.selected_logprobs(head, hidden, targets, temperature=1.0, chunk_tokens=8)
    assert seen == [8, 8, 4]
    found.sum().backward()
    # Recomputed in backward, last chunk first.
    assert sorted(seen[3:]) == [4, 8, 8]
