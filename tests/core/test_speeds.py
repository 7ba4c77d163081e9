"""Predicted speeds in answers: records, ratios, what is said of cards without one, text, and the kinds of kernels."""

from __future__ import annotations

import io

import msgspec
import pytest
from example_reports import fit_row
from hypothesis import given
from hypothesis import strategies as st

from whichgpu import catalogue, render, speed_accuracy, speeds
from whichgpu.cli import main
from whichgpu.render.speed import Row, format_rate, print_speeds, speed_facts
from whichgpu.speed import constants
from whichgpu.speed.asked import Cost
from whichgpu.speed.costs import costs
from whichgpu.speed.kernels import kernel_seconds
from whichgpu.speed.rates import rates
from whichgpu.speed.record import PredictedSpeed, speed
from whichgpu.trace import Op, Tensor

CONSTANTS = constants.load().constants
H200 = rates(catalogue.load().find("H200"))


def op(name: str, inputs: list[Tensor], outputs: list[Tensor], **attributes: object) -> Op:
    """An operator of a forward pass."""
    return Op(f"aten.{name}", "forward", 0, tuple(inputs), tuple(outputs), attributes)


def kind(name: str, inputs: list[Tensor], outputs: list[Tensor], **attributes: object) -> str:
    """The kind of an operator's only cost."""
    (cost,) = costs(op(name, inputs, outputs, **attributes))
    return cost.kind


def tensor(*shape: int, dtype: str = "float32", stride: tuple[int, ...] = ()) -> Tensor:
    """A tensor, contiguous unless it is said."""
    return Tensor(shape, dtype, stride)


@given(batch_size=st.integers(1, 10**6), step_s=st.floats(1e-4, 1e3), width=st.floats(0.01, 1.0))
def test_a_record_agrees_with_itself(batch_size: int, step_s: float, width: float) -> None:
    """Rates are batch by time, and the ends of both intervals lie around their middles."""
    found = speed(batch_size, step_s, width, "memory")

    assert "predicted" == found.basis
    assert found.step_low_s <= found.step_s <= found.step_high_s
    assert found.samples_per_s_low <= found.samples_per_s <= found.samples_per_s_high
    assert pytest.approx(batch_size, rel=1e-3) == found.samples_per_s * found.step_s
    assert pytest.approx(batch_size, rel=1e-3) == found.samples_per_s_low * found.step_high_s


def test_a_ratio_needs_both_speeds() -> None:
    """The baseline is 1; a card without a speed, or a baseline without one, gives none."""
    fast, slow = speed(64, 1.0, 0.2, "memory"), speed(32, 1.0, 0.2, "memory")

    assert {"a": 2.0, "b": 1.0, "c": None} == speeds.relative({"a": fast, "b": slow, "c": "unknown"}, slow)
    assert {"a": None} == speeds.relative({"a": fast}, "unknown")
    assert {"a": None} == speeds.relative({"a": fast}, None)


def test_cards_without_a_speed_are_told_with_the_reason_once() -> None:
    """Cards that miss the same figure stand together, and a batch that does not fit is no reason to tell."""
    cards = [catalogue.load().find(name) for name in ("T4", "L4", "A40")]
    told = list(
        speeds.notes(
            {
                cards[0].id: "T4: its sm_count are unknown",
                cards[1].id: "L4: its sm_count are unknown",
                cards[2].id: "not even batch size 1 fits",
            },
            cards,
        )
    )

    assert ["no speed is predicted of T4, L4: its sm_count are unknown"] == told


@pytest.mark.parametrize(
    ("rate", "words"),
    [(0.7891, "0.789"), (12.34, "12.3"), (1234.0, "1,230"), (99_950.0, "100,000"), (3_641_000.0, "3.64 M")],
)
def test_rates_have_three_digits(rate: float, words: str) -> None:
    """No more than a prediction keeps, and never in powers of ten."""
    assert words == format_rate(rate)


def test_a_table_of_speeds_holds_80_columns() -> None:
    """The widest names and numbers are broken and not cut, and the fastest card comes first."""
    rows = [
        Row(card.name, speed(1_048_576, 0.001 * (number + 1), 0.3, "compute"), None, 0.01 * number)
        for number, card in enumerate(catalogue.load().gpus)
    ]
    file = io.StringIO()
    print_speeds("Speed", reversed(rows), "Quadro RTX 8000", render.make_console(file, width=80))
    lines = file.getvalue().splitlines()

    assert max(map(len, lines)) <= 80
    assert rows[0].gpu.split()[0] in next(line for line in lines if "1,048,576" in line)
    assert "the Quadro RTX 8000 is" in " ".join(lines)


def test_a_card_s_speed_says_its_basis_interval_and_what_it_computes_otherwise() -> None:
    """Nothing is shown without saying that it is predicted, and emulated arithmetic is named."""
    found = speed(64, 0.05, 0.2, "host")
    note = "computes float16 at the speed of float32: it has no tensor cores for it"
    row = msgspec.structs.replace(
        fit_row("T4", 16 << 30, 64, 64), speed=found, relative_speed=1.5, speed_note=note, best_speed=None
    )
    facts = speed_facts(row, "T4")
    words = " ".join(text for _, text in facts)

    assert "1,280 samples/s at batch size 64, predicted" in words
    assert "1.50 times the T4" in words
    assert "limited by the host" in words
    assert "computes float16 at the speed of float32" in words


def test_no_rate_no_speed() -> None:
    """Cards whose rates are unknown are told with the figure that is missing."""

    class Untraced:
        """A predictor that must not be asked."""

    gpu = msgspec.structs.replace(catalogue.load().find("T4"), sm_count=None)
    asked = speeds.Speeds(Untraced())  # type: ignore[arg-type]

    assert "not even batch size 1 fits" == asked.of(gpu, 0)


def test_rows_that_are_no_multiple_of_16_bytes_are_a_kind_of_their_own() -> None:
    """Tensor cores are fed 16 bytes at a time; in float32 an odd number of elements matters alone."""

    def product(columns: int, dtype: str) -> str:
        return kind(
            "mm.default", [tensor(64, 768, dtype=dtype), tensor(768, columns, dtype=dtype, stride=(1, 768))],
            [tensor(64, columns, dtype=dtype)],
        )  # fmt: skip

    assert "product" == product(50304, "bfloat16")
    assert "product_odd" == product(50257, "bfloat16")
    assert "product_even" == product(30522, "bfloat16")
    assert "product_unaligned" == product(50257, "float32")
    assert "product" == product(30522, "float32")


def test_odd_rows_of_float32_are_slower_where_kernels_load_through_registers() -> None:
    """Up to Turing; Ampere and later copy single elements past the registers (NeuSight's products on five cards)."""

    def slower(card: str) -> float:
        found = []
        for columns in (50257, 50256):
            matrices = [tensor(4096, 768), tensor(768, columns)]
            (cost,) = costs(op("mm.default", matrices, [tensor(4096, columns)]))
            found.append(kernel_seconds(cost, rates(catalogue.load().find(card)), CONSTANTS))
        return found[0] / found[1]

    assert slower("V100 PCIe 32GB") > 1.03
    assert slower("A100 SXM4 40GB") < 1.01


def test_an_odd_vocabulary_is_slower_on_tensor_cores() -> None:
    """As was measured: a padded vocabulary is several times as fast."""

    def seconds(columns: int) -> float:
        matrices = [tensor(4096, 768, dtype="bfloat16"), tensor(768, columns, dtype="bfloat16", stride=(1, 768))]
        (cost,) = costs(op("mm.default", matrices, [tensor(4096, columns, dtype="bfloat16")]))
        return kernel_seconds(cost, H200, CONSTANTS)

    assert seconds(50257) > 2 * seconds(50304)


def test_batch_norms_are_cudnn_s_or_pytorch_s() -> None:
    """cuDNN takes float32 and float16 with weights; bfloat16 and instance norms are PyTorch's own."""
    weight = tensor(64)

    def norm(dtype: str, *weights: Tensor, stride: tuple[int, ...] = ()) -> str:
        image = tensor(8, 64, 28, 28, dtype=dtype, stride=stride)
        return kind("native_batch_norm.default", [image, *weights], [image])

    assert "cudnn_batch_norm" == norm("float32", weight, weight)
    assert "batch_norm" == norm("bfloat16", weight, weight)
    assert "batch_norm" == norm("float32")
    assert "cudnn_batch_norm_last" == norm("float16", weight, stride=(50176, 1, 1792, 64))


def test_few_channels_leave_processors_without_work() -> None:
    """The same elements in fewer channels take longer, as a block has a channel."""

    def seconds(channels: int) -> float:
        image = tensor(8, channels, 2**22 // channels, 1)
        (cost,) = costs(op("native_batch_norm.default", [image, tensor(channels)], [image]))
        return kernel_seconds(cost, H200, CONSTANTS)

    assert seconds(16) > 2 * seconds(256)


def test_sums_along_rows_and_across_them_are_told_apart() -> None:
    """Which dimension is dense in memory decides."""
    rows = tensor(128, 4096)

    assert "reduction_rows" == kind("sum.dim_IntList", [rows], [tensor(128)], dim=[1])
    assert "reduction_columns" == kind("sum.dim_IntList", [rows], [tensor(4096)], dim=[0])
    assert "reduction" == kind("sum.default", [rows], [tensor()])


def test_a_softmax_across_memory_is_told_apart() -> None:
    """Classes that are not the last dimension, as of segmentation, take another kernel."""
    image = tensor(4, 21, 64, 64)

    assert "softmax_columns" == kind("_log_softmax.default", [image], [image], dim=1)
    assert "softmax" == kind("_log_softmax.default", [tensor(8, 21)], [tensor(8, 21)], dim=-1)


def test_elements_that_are_spread_over_others_are_told_apart() -> None:
    """A bias is broadcast; two tensors of the same shape are not."""
    image = tensor(32, 768)

    assert "broadcast" == kind("add.Tensor", [image, tensor(768)], [image])
    assert "elementwise" == kind("add.Tensor", [image, image], [image])


@pytest.mark.parametrize(
    "name", ["mm.default", "convolution.default", "_embedding_bag.default", "native_layer_norm_backward.default"]
)
def test_an_operator_with_other_tensors_than_its_name_promises_still_costs_its_bytes(name: str) -> None:
    """Answers about memory must not fail for the sake of speed."""
    (cost,) = costs(op(name, [], [tensor(1000)]))

    assert Cost("elementwise", "fp32", 0.0, 4000, 1, None, 1000.0) == cost


def test_the_errors_that_come_with_the_package_name_missed_bars() -> None:
    """A bar is met or missed by the figures beside it, and steps that were not fitted are among them."""
    report = speed_accuracy.report()
    first = report.errors[0]
    (bar,) = [bar for bar in report.bars if bar.title == first.title]

    assert not first.fitted
    assert first.steps > 100
    assert bar.met == (first.median <= 0.07 and first.percentile_90 <= 0.20)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["accuracy", "power"], "say memory or speed"),
        (["accuracy", "speed", "--markdown"], "docs/speed.md"),
        (["fit", "resnet50", "--baseline", "no such card"], "no card is called"),
        (["rank", "resnet50", "--baseline", "no such card"], "no card is called"),
        (["fit", "resnet50", "--baseline", "MI300X"], "has no CUDA"),
        (["rank", "resnet50", "--baseline", "MI300X"], "has no CUDA"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that says what to do, and no traceback."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    said = capsys.readouterr().err

    assert 2 == stopped.value.code
    assert words in said
    assert 1 == said.count("\n")


def test_the_accuracy_of_speeds_is_shown_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Bars with what was reached, and errors by table."""
    with pytest.raises(SystemExit) as stopped:
        main(["accuracy", "speed"])
    lines = capsys.readouterr().out.splitlines()

    assert 0 == stopped.value.code
    assert max(map(len, lines)) <= 80
    assert any("Wanted" in line for line in lines)


def test_speeds_can_be_read_back() -> None:
    """What --json prints is the record."""
    found = speed(64, 0.05, 0.2, "host")

    assert found == msgspec.json.decode(msgspec.json.encode(found), type=PredictedSpeed)
