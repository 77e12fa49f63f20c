"""The kernels in Triton's interpreter and the twin against the twin in float64, that against sorting written out."""

import math

import pytest
import torch

from c2t.errors import InputError
from c2t.kernels import rows as rows_module
from c2t.kernels.native import kernels
from c2t.kernels.rows import MANTISSA, TopK, chunk_size, compiled_rank, rank, triton, triton_rank
from c2t.protocols import NextTokenDistributions
from tests.rounding import assert_within, entropy_bound, growth, log_prob_bound

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NINF, NAN = float("-inf"), float("nan")


def agree(logits: torch.Tensor, k: int, m: int | None, chunk: int | None = None) -> None:
    """The kernel, and the twin in float32, with the twin in float64. A program of the kernel has 256 threads at least,
    which add a chunk of at most 8192 logits one behind the other (32), then among themselves (8 steps), and 64 chunks
    after that: chains of 128 additions, however large the vocabulary."""
    exact, narrow = rank(logits.cpu().double(), k, m), rank(logits.cpu(), k, m)
    close(triton_rank(logits.to(DEVICE), k, m, chunk), exact, logits, 128)
    close(narrow, exact, logits, logits.shape[-1])


def close(found: TopK, exact: TopK, logits: torch.Tensor, chain: int) -> None:
    """Fail where float32 with chains of so many additions does not explain a difference."""
    assert found.token.cpu().equal(exact.token)
    terms = logits[..., : min(chain, logits.shape[-1])]
    largest = torch.where(logits.isfinite(), logits.double(), 0).abs().max() if logits.numel() else 0.0
    bound = growth(terms.shape[-1] + 8) + growth(6) * float(largest)
    assert_within(found.log_norm.cpu(), exact.log_norm, bound, "log_norm")
    assert_within(found.log_prob.cpu(), exact.log_prob, bound, "log_prob")
    bound = bound * (1 + 2 * exact.entropy) + growth(terms.shape[-1] + 4) * exact.entropy
    assert_within(found.entropy.cpu(), exact.entropy, bound.nan_to_num(), "entropy")


def tied(rows: int, vocabulary: int) -> torch.Tensor:
    """Few different values, so that the k-th and the m-th have equals."""
    return torch.randint(-3, 4, (rows, vocabulary)).float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("values", ["random", "tied", "equal", "reduced"])
def test_twin_sorts_stably(dtype: torch.dtype, values: str) -> None:
    logits = {"random": 3 * torch.randn(4, 101), "tied": tied(4, 101), "equal": torch.ones(4, 101)}
    logits["reduced"] = torch.randn(4, 101).index_fill(1, torch.arange(5, 101), NINF)
    logits = logits[values].to(dtype)
    found = rank(logits, 9, 20)
    for row, numbers in enumerate(logits.double().tolist()):
        total = sum(map(math.exp, numbers))
        order = sorted(range(101), key=lambda token: -numbers[token])  # Python's sort is stable
        probs = [math.exp(numbers[token]) / total for token in order]
        assert found.token[row].tolist() == order[:9]
        expected = [math.log(p) if p else NINF for p in probs[:9]]
        entropy = torch.tensor(-sum(p * math.log(p) for p in probs[:20] if p), dtype=torch.float64)
        works_in = torch.float64 if dtype == torch.float64 else torch.float32
        bound = log_prob_bound(logits[row], works_in)
        assert_within(found.log_norm[row], torch.tensor(math.log(total), dtype=torch.float64), bound, "log_norm")
        assert_within(found.log_prob[row], torch.tensor(expected, dtype=torch.float64), bound, "log_prob")
        assert_within(found.entropy[row], entropy, entropy_bound(entropy, logits[row], works_in), "entropy")


@pytest.mark.skipif(kernels() is None, reason="no C compiler here, or C2T_MARCH=off")
class TestInC:
    @pytest.mark.parametrize(("k", "m"), [(5, 20), (3, None), (0, 0), (15, 1000), (1, 1), (20, 0), (0, 70)])
    @pytest.mark.parametrize("shape", [(3, 133), (2, 2, 1040), (1, 8192), (0, 40), (1, 24)])
    @pytest.mark.parametrize("values", ["random", "tied", "equal", "reduced", "signs"])
    def test_is_the_twin(self, shape: tuple[int, ...], values: str, k: int, m: int | None) -> None:
        generator = torch.Generator().manual_seed(k)
        logits = {
            "random": 3 * torch.randn(shape, generator=generator),
            "tied": torch.randint(-3, 4, shape, generator=generator).float(),
            "equal": torch.full(shape, -7.5),
            "reduced": torch.randn(shape, generator=generator).index_fill(-1, torch.arange(9, shape[-1]), NINF),
            "signs": torch.randn(shape, generator=generator).sign() * 0.0,
        }[values]
        exact = rank(logits.double(), k, m)
        close(compiled_rank(logits, k, m), exact, logits, logits.shape[-1])

    def test_rows_without_any_probability_or_with_nan(self) -> None:
        logits = torch.randn(3, 70)
        logits[0, 50], logits[1] = NAN, NINF
        found = compiled_rank(logits, 2, 10)
        assert found.log_norm.isnan().tolist() == [True, False, False]
        assert found.entropy[0].isnan()
        assert found.log_prob[0].isnan().all()
        assert found.log_norm[1] == NINF
        assert 0 <= int(found.token.min()) <= int(found.token.max()) < 70

    def test_what_it_does_not_serve(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """float64, and everything where it cannot be compiled, is torch's."""
        logits = torch.randn(2, 50)
        wide, narrow = rank(logits.double(), 3, 10), rank(logits, 3, 10)
        assert wide.log_norm.dtype == torch.float64
        monkeypatch.setattr(rows_module, "kernels", lambda: None)
        close(rank(logits, 3, 10), wide, logits, 50)
        assert narrow.token.equal(wide.token)


@pytest.mark.skipif(triton is None, reason="triton is not installed")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy says when the interpreter meets -inf or NaN
class TestKernels:
    @pytest.mark.parametrize("dtype", list(MANTISSA))
    @pytest.mark.parametrize(("k", "m"), [(5, 20), (3, None)])
    def test_random_rows(self, dtype: torch.dtype, k: int, m: int | None) -> None:
        agree((3 * torch.randn(2, 133)).to(dtype), k, m, chunk=64)

    @pytest.mark.parametrize(("k", "m"), [(7, 40), (2, 100), (1, 0), (0, 40), (0, 0)])
    def test_ties_within_and_across_chunks(self, k: int, m: int) -> None:
        agree(tied(2, 133), k, m, chunk=64)
        agree(torch.tensor([[-1.0, -0.0, 0.0, -0.0, -2.0]]), min(k, 4), min(m, 2), chunk=8)

    def test_entropy_over_more_tokens_than_a_chunk_or_the_vocabulary_has(self) -> None:
        for m in (70, 134):
            agree(torch.randn(2, 133), 2, m, chunk=64)

    def test_one_chunk_and_one_token(self) -> None:
        agree(torch.randn(1, 1), 1, None, chunk=16)
        agree(torch.randn(2, 50), 4, 10)

    def test_reduced_vocabulary(self) -> None:
        """More tokens are asked for than have a probability; whole chunks have none."""
        logits = torch.randn(2, 133).index_fill(1, torch.arange(3, 133), NINF)
        for values, m in ((logits, 20), (logits.flip(1), None), (logits.bfloat16(), 2)):
            agree(values, 6, m, chunk=64)

    def test_rows_without_any_probability_or_with_nan(self) -> None:
        agree(torch.full((1, 70), NINF), 2, 10, chunk=32)
        logits = torch.randn(3, 70)
        logits[0, 50] = logits[1, 0] = NAN
        found = triton_rank(logits.to(DEVICE), 2, 10, 32)
        assert found.log_norm.isnan().tolist() == [True, True, False]
        assert found.entropy.isnan().tolist() == [True, True, False]
        assert found.log_prob.isnan().all(1).tolist() == [True, True, False]

    def test_shapes_and_strides(self) -> None:
        logits = torch.randn(2, 2, 90)
        agree(logits[:, :1, 3:73], 3, 8, chunk=64)
        agree(logits.transpose(0, 2)[:3, 0], 1, 1, chunk=16)
        agree(logits[:0], 3, 8, chunk=64)

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", list(MANTISSA))
    @pytest.mark.parametrize("vocabulary", [8192, 32000, 151_936, 262_144])
    @pytest.mark.parametrize(("k", "m"), [(15, 1000), (32, None), (10, 5000), (10, 0)])
    def test_full_size(self, dtype: torch.dtype, vocabulary: int, k: int, m: int | None) -> None:
        agree((4 * torch.randn(15, vocabulary)).to(dtype), k, m)
        agree(tied(3, vocabulary).to(dtype), k, m)


def test_chunks_are_few() -> None:
    for vocabulary in (1, 4096, 4097, 32000, 131_072, 131_073, 151_936, 2**20):
        chunk = chunk_size(vocabulary)
        assert chunk >= 4096
        assert chunk & (chunk - 1) == 0
        assert -(-vocabulary // chunk) <= 32


def test_rows_rank_at_once_as_one_by_one() -> None:
    rows = NextTokenDistributions(tied(6, 50).reshape(2, 3, 50).bfloat16())
    token, prob, entropy = rows.topk_entropy(4, 10)
    assert token.equal(rows.top(4)[0])
    assert prob.equal(rows.top(4)[1])
    assert entropy.equal(rows.entropy(10))
    with pytest.raises(InputError, match="vocabulary of 50 tokens"):
        rows.topk_entropy(51, 0)
