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
    for logprob, entropy in (found[:2], expected):
        gradients.append(torch.autograd.grad((logprob * weights + entropy * weights.flip(0)).sum(), (hidden, weight)))
    for ours, theirs in zip(found[:2], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))


def lesson_of(vocab: int, rows: int, count: int) -> logprobs.Likeliest:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(rows, vocab, generator=generator)
    return logprobs.likeliest(logits, count=count, temperature=1.0)


@pytest.mark.parametrize("chunk_tokens", [1000, 40, 7])
@pytest.mark.parametrize("count", [1, 5])
def test_an_agreement_is_minus_the_cross_entropy_to_a_lesson_and_so_is_its_gradient(
    count: int, chunk_tokens: int
) -> None:
    hidden, weight, targets = case()
    lesson = lesson_of(len(weight), len(targets), count)
    weights = torch.linspace(-1.0, 1.0, len(targets))

    def gradients(logprob: torch.Tensor, entropy: torch.Tensor, agreement: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = (logprob * weights + entropy * weights.flip(0) + agreement * weights.square()).sum()
        return torch.autograd.grad(whole, (hidden, weight))

    *found, agreement = logprobs.selected_logprobs(
        lambda states: states @ weight.T, hidden, targets, temperature=0.7, chunk_tokens=chunk_tokens, lesson=lesson
    )
    assert isinstance(agreement, torch.Tensor)
    whole = torch.log_softmax(hidden @ weight.T / 0.7, dim=-1)
    expected = (whole.gather(1, lesson.ids) * lesson.shares).sum(-1)
    torch.testing.assert_close(agreement, expected, rtol=1e-5, atol=1e-5)
    theirs = gradients(*reference(hidden @ weight.T, targets, 0.7), expected)
    for one, other in zip(gradients(found[0], found[1], agreement), theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def test_the_likeliest_tokens_have_shares_that_add_up_and_are_all_of_a_small_vocabulary() -> None:
    logits = torch.randn(50, 12, generator=torch.Generator().manual_seed(3))
    few, every = (logprobs.likeliest(logits, count=count, temperature=2.0) for count in (3, 100))
    assert few.ids.tolist() == logits.topk(3).indices.tolist()
    torch.testing.assert_close(few.shares.sum(-1), torch.ones(50))
    found = torch.zeros(50, 12).scatter(1, every.ids, every.shares)
    torch.testing.assert_close(found, torch.softmax(logits / 2.0, dim=-1))


@pytest.mark.parametrize("chunk_tokens", [1000, 7])
def test_the_likeliest_tokens_are_those_of_the_logits_that_are_scored(chunk_tokens: int) -> None:
    hidden, weight, targets = case()
    *_, found = logprobs.selected_logprobs(
        lambda states: states @ weight.T, hidden, targets, temperature=0.7, chunk_tokens=chunk_tokens, num_likeliest=3
    )
    assert isinstance(found, logprobs.Likeliest)
    expected = logprobs.likeliest((hidden @ weight.T).detach(), count=3, temperature=0.7)
    assert torch.equal(found.ids, expected.ids)
    torch.testing.assert_close(found.shares, expected.shares)


@pytest.mark.parametrize("used", [0, 1])
def test_an_output_that_the_loss_ignores_gets_no_gradient(used: int) -> None:
    hidden, weight, targets = case()
    found = logprobs.SelectedLogSoftmax.apply(hidden @ weight.T, targets, 1.0)
    expected = reference(hidden @ weight.T, targets, 1.0)
    ours = torch.autograd.grad(found[used].sum(), hidden)[0]
    torch.testing.assert_close(ours, torch.autograd.grad(expected[used].sum(), hidden)[0], rtol=1e-5, atol=1e-5)


def test_bf16_logits_are_normalised_in_fp32() -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    found, entropy, _ = logprobs.SelectedLogSoftmax.apply(logits, torch.tensor([1, 2, 3, 4]), 1.0)
    expected = reference(logits.float(), torch.tensor([1, 2, 3, 4]), 1.0)
    assert found.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(found, expected[0], rtol=1e-6, atol=1e-6)


def test_two_equal_logits_have_the_entropy_of_a_coin() -> None:
    _, entropy, _ = logprobs.SelectedLogSoftmax.apply(torch.zeros(1, 2), torch.tensor([0]), 1.0)
    assert float(entropy) == pytest.approx(0.6931, abs=1e-4)


def test_only_one_chunk_of_logits_is_alive_at_a_time() -> None:
    hidden, weight, targets = case(rows=20)
    seen: list[int] = []

    def head(states: torch.Tensor) -> torch.Tensor:
        seen.append(len(states))
        return states @ weight.T

    found, *_ = logprobs.selected_logprobs(head, hidden, targets, temperature=1.0, chunk_tokens=8)
    assert seen == [8, 8, 4]
    found.sum().backward()
    # Recomputed in backward, last chunk first.
    assert sorted(seen[3:]) == [4, 8, 8]
