"""`whichgpu update`: prices come from a local server, are shown before they are written, and only the user's file changes."""

from __future__ import annotations

import gc
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from importlib.resources import files
from pathlib import Path

import pytest

from whichgpu import catalogue, cli, gpuhunt_prices, refresh
from whichgpu.errors import CatalogueError, MissingExtraError

pytest.importorskip("gpuhunt")
# gpuhunt leaves the answers open that say that a list is not there
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

LISTS = Path(__file__).parents[1] / "data" / "gpuhunt"
TODAY = date.today().isoformat()
VERSION = f"{TODAY.replace('-', '')}-1"


class Server(http.server.ThreadingHTTPServer):
    """Serves the lists of some providers as dstack does; every other one is not there."""

    lists: dict[str, bytes]

    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}/v3"


class Handler(http.server.BaseHTTPRequestHandler):
    """A version, or the archive of one."""

    def do_GET(self) -> None:
        """Answer as the bucket would."""
        assert isinstance(self.server, Server)
        _, _, provider, *rest = self.path.split("/")
        found = self.server.lists.get(provider)
        answer = {("version",): VERSION.encode() + b"\n", (VERSION, "catalog.zip"): found}.get(tuple(rest))
        self.send_response(404 if found is None or answer is None else 200)
        self.end_headers()
        self.wfile.write(answer or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def archive(provider: str, text: str) -> bytes:
    """A list as it is published."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as folder:
        folder.writestr(f"{provider}.csv", text)
    return held.getvalue()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server of two providers, and a user without refreshed prices."""
    with Server(("127.0.0.1", 0), Handler) as found:
        found.lists = {path.stem: archive(path.stem, path.read_text()) for path in sorted(LISTS.glob("*.csv"))}
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", found.address())
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
        yield found
        found.shutdown()
        thread.join()
    gc.collect()  # so that what gpuhunt left open is not noticed in another test


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_the_smallest_instance_of_each_region_is_kept(server: Server) -> None:
    """Prices are for one card of the smallest and cheapest instance, with its size, name and region."""
    update = refresh.prepare(gpuhunt_prices.fetch())
    found = {(o.provider, o.gpus[0], o.kind, o.region): o for o in update.offers}
    t4 = found["aws", "t4", "cloud-on-demand", "us-east-1"]
    assert (Decimal("0.526"), 1, "g4dn.xlarge", TODAY) == (t4.usd, t4.count, t4.instance, t4.date)
    assert Decimal("0.587") == found["aws", "t4", "cloud-on-demand", "eu-west-1"].usd
    assert Decimal("0.2") == found["aws", "t4", "cloud-spot", "us-east-1"].usd
    a100 = found["aws", "a100-pcie-40gb", "cloud-on-demand", "us-east-1"]
    assert (Decimal("2.745"), 8) == (a100.usd, a100.count)
    assert "gpuhunt 0.1" in a100.source


def test_what_cannot_be_used_is_named(server: Server) -> None:
    """Unknown cards, prices in the wrong unit and providers out of reach are left out and said."""
    update = refresh.prepare(gpuhunt_prices.fetch())
    assert {"V520 8 GB": 1} == update.unknown
    (problem,) = update.unlikely
    assert problem.startswith("aws p5.48xlarge us-east-1: 688 is ")
    assert "USD for an hour of one card" in problem
    assert not [o for o in update.offers if o.provider == "aws" and "h100-sxm5-80gb" in o.gpus]
    assert ("azure", "cloudrift", "gcp", "nebius", "oracle", "runpod", "verda") == update.missing


def test_a_dry_run_shows_and_writes_nothing(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run prints each change with what was known before, and leaves no file."""
    code, out, _ = run(capsys, "update", "--dry-run")
    assert 0 == code
    assert "H100 PCIe 80GB ..." in out
    assert "Not written" in out.replace("\n", " ")
    assert not catalogue.user_folder().exists()


def test_yes_writes_the_users_file_alone(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """--yes writes; later answers use the new prices; the shipped data is the same as before."""
    folder = files("whichgpu") / "data" / "prices"
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    old = catalogue.load().price(catalogue.load().find("T4"), "rent")
    code, out, _ = run(capsys, "update", "--yes", "--json")
    assert 0 == code
    report = json.loads(out)
    assert report["written"] is True
    assert [refresh.path()] == [path for path in catalogue.user_folder().rglob("*") if path.is_file()]
    assert before == {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    new = catalogue.load().price(catalogue.load().find("T4"), "rent")
    assert old is not None
    assert new is not None
    assert TODAY == new.newest > old.newest
    aws = [o for o in catalogue.load().offers if o.provider == "aws" and o.instance == "p4d.24xlarge"]
    assert 8 in {o.count for o in aws}
    _, again, _ = run(capsys, "update", "--dry-run", "--json")
    assert [] == json.loads(again)["changes"]
    assert len(report["offers"]) > json.loads(again)["unchanged"] > 0


def test_a_provider_out_of_reach_keeps_its_earlier_prices(server: Server) -> None:
    """What could not be fetched this time stays as it was fetched before."""
    refresh.write(refresh.prepare(gpuhunt_prices.fetch()))
    del server.lists["lambdalabs"]
    update = refresh.prepare(gpuhunt_prices.fetch())
    assert "lambda" in update.missing
    refresh.write(update)
    refreshed = [o for o in catalogue.load().offers if "gpuhunt" in o.source]
    assert {"aws", "lambda"} == {o.provider for o in refreshed}


def test_the_file_is_replaced_whole_or_not_at_all(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves the earlier file and nothing beside it, and says so in a line."""
    refresh.write(refresh.prepare(gpuhunt_prices.fetch()))
    before = refresh.path().read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(CatalogueError, match=r"cannot be written \(No space left on device\); nothing was changed"):
        refresh.write(refresh.prepare(gpuhunt_prices.fetch()))
    assert before == refresh.path().read_bytes()
    assert ["gpuhunt.toml"] == [path.name for path in refresh.path().parent.iterdir()]


def test_no_network_is_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing answers, one line says what to do, without a traceback."""
    monkeypatch.setenv("GPUHUNT_CATALOG_URL", "http://127.0.0.1:9/v3")
    code, out, err = run(capsys, "update", "--dry-run")
    assert (2, "") == (code, out)
    assert err.startswith("error: no prices could be fetched (Connection refused); connect to the network")
    assert 1 == err.count("\n")


@pytest.mark.parametrize(
    "text", ["nonsense", "instance_name,price\nx,1\n", (LISTS / "aws.csv").read_text().split("\n")[0]]
)
def test_lists_that_hold_nothing_are_refused(server: Server, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged or empty list changes nothing, and one line says so."""
    server.lists = {"aws": archive("aws", text)}
    code, _, err = run(capsys, "update", "--yes")
    assert 2 == code
    assert "the prices at hand stay as they are" in err
    assert 1 == err.count("\n")
    server.lists = {"aws": b"no archive"}
    code, _, err = run(capsys, "update", "--yes")
    assert 2 == code
    assert "no prices could be fetched (" in err
    assert 1 == err.count("\n")
    assert not catalogue.user_folder().exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--yes", "--dry-run"], "--yes and --dry-run: choose one"),
        ([], "nobody can be asked here; say --yes to write, or --dry-run"),
        (["--json"], "nobody can be asked here"),
    ],
)
def test_contradictions_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is fetched where nobody could agree to it."""
    code, _, err = run(capsys, "update", *arguments)
    assert 2 == code
    assert said in err


@pytest.mark.parametrize(("answer", "written"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_person_is_asked(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str, written: bool
) -> None:
    """In a terminal the difference is shown first; only a yes writes."""
    typed = io.StringIO(answer)
    monkeypatch.setattr(typed, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typed)
    _, out, _ = run(capsys, "update")
    assert "Not written" in out.replace("\n", " ")
    assert written == refresh.path().is_file()


def test_without_gpuhunt_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has not installed it hears how to."""
    monkeypatch.setitem(__import__("sys").modules, "gpuhunt", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'whichgpu\[update\]'"):
        gpuhunt_prices.fetch()


@pytest.mark.parametrize(
    ("version", "day"), [("20261103-2", "2026-11-03"), ("20269999", None), ("latest", None), ("20991231", None)]
)
def test_the_day_of_a_list_is_that_of_its_version(version: str, day: str | None) -> None:
    """A version that is no day, or one to come, stands for today."""
    assert (day or date.today().isoformat()) == gpuhunt_prices._made_on(version)
