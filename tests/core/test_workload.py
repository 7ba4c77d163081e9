"""Names of workloads, and loading of files that need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whichgpu import workload
from whichgpu.errors import MissingExtraError, WorkloadError
from whichgpu.workload import Workload, load, nearest, parse, with_options
from whichgpu.zoo import ENTRIES

GOOD = "def setup(device):\n    return lambda batch_size: batch_size\n"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test sees an empty current folder, and leaves `sys.path` as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def write(name: str, text: str = GOOD) -> str:
    """Write a file in the current folder; returns its name."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def message(text: str) -> str:
    """The one line that parsing and loading `text` fails with."""
    with pytest.raises(WorkloadError) as caught:
        load(parse(text))
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("my-model.py", ("my-model.py:setup", "file", "setup", {})),
        ("./my-model.py:train", ("my-model.py:train", "file", "train", {})),
        ("json:loads", ("json:loads", "module", "loads", {})),
        ("os.path:Class.method", ("os.path:Class.method", "module", "Class.method", {})),
        ("timm:resnet50", ("timm:resnet50", "timm", None, {})),
        (
            "hf:gpt2?seq=8&precision=bf16",
            ("hf:gpt2?precision=bf16&seq=8", "hf", None, {"seq": "8", "precision": "bf16"}),
        ),
        (
            "torchvision:vgg11?channels_last",
            ("torchvision:vgg11?channels_last=1", "torchvision", None, {"channels_last": "1"}),
        ),
        (" bert-base ", ("bert-base", "zoo", None, {})),
        ("bert-base?seq=64", ("bert-base?seq=64", "zoo", None, {"seq": "64"})),
    ],
)
def test_parse_reads_every_form(text: str, expected: tuple[str, str, str | None, dict[str, str]]) -> None:
    """Each form of name is read into its scheme, function and options, and spelled in one way."""
    write("my-model.py")
    ref = parse(text)
    assert expected == (ref.text, ref.scheme, ref.function, ref.options)


def test_targets_are_found_from_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file and a local configuration are named by absolute paths, so a worker elsewhere finds them."""
    write("model.py")
    write("llama/config.json", "{}")
    assert str(tmp_path / "model.py") == parse("model.py").target
    assert str(tmp_path / "llama/config.json") == parse("hf:./llama").target
    assert str(tmp_path / "llama/config.json") == parse("hf:llama/config.json?seq=8").target
    assert "llama" == parse("hf:llama").target


WORDS = st.text("abcxyz_0129.-", min_size=1, max_size=12)


@given(
    scheme=st.sampled_from(["timm:", "torchvision:", "hf:"]),
    name=WORDS.filter(lambda word: not word.endswith(".json")),
    options=st.dictionaries(WORDS, WORDS, max_size=4),
)
def test_library_names_survive_a_round_trip(scheme: str, name: str, options: dict[str, str]) -> None:
    """Parsing the canonical text gives the same reference again, whatever the order of options."""
    text = f"{scheme}{name}?" + "&".join(f"{key}={value}" for key, value in options.items())
    ref = parse(text if options else f"{scheme}{name}")
    assert ref == parse(ref.text)
    assert options == ref.options


@given(stem=st.text("abc-_ .:?&=", min_size=1, max_size=8), function=st.sampled_from(["", ":setup", ":a.b"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_file_names_survive_a_round_trip(stem: str, function: str) -> None:
    """A file of any name that is not taken for a scheme parses to itself."""
    name = "x" + stem + ".py"
    write(name)
    ref = parse(name + function)
    assert ref == parse(ref.text)
    assert ("file", Path(name).absolute()) == (ref.scheme, Path(ref.target))


@pytest.mark.parametrize("name", ["caf\udce9.py", "timm:re\udcff", "bert-base?seq=\udcff", "caf\udce9:setup"])
def test_bytes_that_are_no_text_are_refused_with_the_cure(name: str) -> None:
    """Python stands such bytes of the command line in for halves of characters, which nothing can encode."""
    write("caf\udce9.py")
    said = message(name)
    assert "set LC_ALL to a UTF-8 locale" in said
    assert r"\udc" in said
    said.encode()


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen from a folder like that, every file and every module has it in its path."""
    (tmp_path / "d\udce9").mkdir()
    monkeypatch.chdir(tmp_path / "d\udce9")
    write("train.py")
    for name in ("train.py", "train:setup", "no.py"):
        assert "set LC_ALL to a UTF-8 locale" in message(name)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    """No text at all makes parse fail in another way than a WorkloadError of one line."""
    failure = "read"
    try:
        parse(text)
    except WorkloadError as error:
        failure = str(error)
    assert 1 == len(failure.splitlines())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a workload is file.py:function"),
        ("bert-bse", "did you mean bert-base"),
        ("BERT-base", "did you mean bert-base"),
        ("bert-bse?seq=3", "did you mean bert-base"),
        ("tim:resnet50", "no scheme and no module tim; did you mean timm?"),
        ("nosuchmodule:setup", "no module nosuchmodule"),
        ("mymodle.py", "no such file: mymodle.py"),
        ("mymodle.py", "did you mean mymodel.py?"),
        ("nosuchfolder/x.py", "no such file"),
        ("mymodel.py:", "'' is not a function name"),
        ("mymodel.py:3d", "'3d' is not a function name"),
        ("mymodel.py:setup?seq=3", "options are for timm:"),
        ("mymodel.py?seq=3", "options are for timm:"),
        ("timm:", "needs the name of an architecture"),
        ("timm:resnet50?", "options are key=value"),
        ("timm:resnet50?size=", "options are key=value"),
        ("timm:resnet50?=3", "options are key=value"),
        ("timm:resnet50?size=3&size=4", "size is given twice"),
        ("hf:meta-llama/Llama-3-8B", "nothing is downloaded"),
        ("hf:nosuch.json", "no config.json"),
        ("json:nosuch", "functions there that take one argument: dumps"),
        ("os.nosuch:setup", "no module named os.nosuch"),
        ("mymodel.py:stup", "functions there that take one argument: setup"),
        ("mymodel.py:NUMBER", "NUMBER is int, not a function"),
        ("mymodel.py:nothing", "must take exactly one argument, the device"),
        ("mymodel.py:two", "must take exactly one argument, the device"),
    ],
)
def test_bad_names_name_the_cure(text: str, part: str) -> None:
    """Every name that cannot be used is refused in one line that says what would do."""
    write("mymodel.py", GOOD + "NUMBER = 3\ndef nothing(): pass\ndef two(a, b): pass\ndef _hidden(a): pass\n")
    assert part in message(text)
    assert "_hidden" not in message(text)


@pytest.mark.parametrize(
    ("source", "part", "line"),
    [
        ("x = 1\ny = undefined\n", "NameError: name 'undefined' is not defined", 2),
        ("def setup(device)\n    pass\n", "SyntaxError: expected ':'", 1),
        ("import nosuchmodule\n", "ModuleNotFoundError: No module named 'nosuchmodule'", 1),
        ("import sys\n\nsys.exit('usage')\n", "SystemExit: usage", 3),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines", 1),
        ("import json\njson.loads('{')\n", "JSONDecodeError", 2),
    ],
)
def test_a_failing_import_says_what_and_where(source: str, part: str, line: int, tmp_path: Path) -> None:
    """A file that fails on import gives its traceback's last line and the line of the user's code."""
    write("broken.py", source)
    text = message("broken.py")
    assert part in text
    assert f"({tmp_path / 'broken.py'}:{line})" in text
    assert not [name for name in sys.modules if name.startswith("whichgpu_user_broken")]


def test_a_failing_import_of_a_sibling_points_to_the_sibling(tmp_path: Path) -> None:
    """When a module that the file imports fails, that module's line is named."""
    write("sibling_that_fails.py", "\n1 / 0\n")
    write("train.py", "import sibling_that_fails\n" + GOOD)
    assert f"ZeroDivisionError: division by zero ({tmp_path / 'sibling_that_fails.py'}:2)" in message("train.py")


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("timm", "pip install 'whichgpu[zoo]'"),
        ("transformers", "whichgpu[zoo]"),
        ("diffusers", "whichgpu[zoo]"),
        ("peft", "whichgpu[zoo]"),
        ("scipy", "whichgpu[zoo]"),
        ("torch", "pip install torch"),
    ],
)
def test_a_missing_library_names_what_to_install(package: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A known library that is not installed is an error of its own that names the extra."""
    monkeypatch.setitem(sys.modules, package, None)
    write("train.py", f"import {package}\n" + GOOD)
    with pytest.raises(MissingExtraError) as caught:
        load(parse("train.py"))
    assert command in str(caught.value)


@pytest.mark.parametrize(
    ("returned", "part"),
    [
        ("None", "returned NoneType, not a function"),
        ("3", "returned int, not a function"),
        ("lambda: 0", "does not take exactly one argument"),
        ("lambda a, b: 0", "does not take exactly one argument"),
    ],
)
def test_a_setup_must_return_a_step(returned: str, part: str) -> None:
    """A setup that returns no step(batch_size) is an error when it is called."""
    write("train.py", f"def setup(device):\n    return {returned}\n")
    loaded = load(parse("train.py"))
    with pytest.raises(WorkloadError, match=r"train\.py:setup") as caught:
        loaded.setup("cpu")
    assert part in str(caught.value)


def test_only_what_is_alike_is_suggested() -> None:
    """A short word is not taken for every long one that holds a part of it."""
    assert "" == nearest("foo", ["foreach", "fused", "weight_decay"])
    assert "; did you mean seq?" == nearest("sqe", ["seq", "foreach"])
    assert "; did you mean Foreach?" == nearest("foreahc", ["seq", "Foreach"])


def test_frames_of_cpp_are_left_out() -> None:
    """What PyTorch's C++ says of its own frames is no part of one line for a user."""
    error = WorkloadError("m: cannot build it (Overflow\nException raised from f at /x.h:79 frame #0: c10::Error)")
    assert "m: cannot build it (Overflow ..." == str(error)


def test_errors_of_setup_itself_pass_unchanged() -> None:
    """What a setup raises reaches the caller as it was, for a tracer to judge; failure_line words it."""
    write("train.py", "def setup(device):\n    raise KeyError('weights')\n")
    with pytest.raises(KeyError) as caught:
        load(parse("train.py")).setup("cpu")
    assert workload.failure_line(caught.value).endswith("train.py:2)")
    assert workload.failure_line(caught.value).startswith("KeyError: 'weights' (")


def test_a_file_with_an_odd_name_imports_its_siblings() -> None:
    """A file that is no identifier loads, sees modules in its folder, and can define dataclasses."""
    write("odd/sibling_of_odd.py", "NUMBER = 41\n")
    source = """from __future__ import annotations
from dataclasses import dataclass
import sibling_of_odd

@dataclass
class Trainer:
    device: str

    def __call__(self, batch_size):
        return sibling_of_odd.NUMBER + batch_size
"""
    write("odd/my-model.v2.py", source)
    step = load(parse("odd/my-model.v2.py:Trainer")).setup("cpu")
    assert 42 == step(1)


def test_a_file_named_like_a_library_hides_nothing() -> None:
    """Loading a file called json.py leaves the real module in place."""
    import json

    write("json.py")
    load(parse("json.py"))
    assert json is sys.modules["json"]


def test_a_package_is_loaded_from_the_current_folder() -> None:
    """package.module:function finds a package in the current folder, relative imports included."""
    write("package_here/__init__.py", "")
    write("package_here/parts.py", "NUMBER = 1\n")
    write("package_here/train.py", "from .parts import NUMBER\n" + GOOD)
    assert 5 == load(parse("package_here.train:setup")).setup("cpu")(5)


def test_the_decorator_sets_unit_and_name() -> None:
    """What the decorator says is in the loaded workload; without it the defaults are."""
    source = "from whichgpu import describe\n"
    source += "@describe(unit='tokens', items_per_sample=128, name='mine', default_batch_size=4)\n"
    write("marked.py", source + GOOD.replace("return", "'''Train it.'''\n    return"))
    write("plain.py")
    marked, plain = load(parse("marked.py")), load(parse("plain.py"))
    expected = ("mine", "tokens", 128, 4, "Train it.")
    assert expected == (
        marked.name,
        marked.unit,
        marked.items_per_sample,
        marked.default_batch_size,
        marked.description,
    )
    assert ("plain.py:setup", "samples", 1, 8) == (
        plain.name,
        plain.unit,
        plain.items_per_sample,
        plain.default_batch_size,
    )
    assert isinstance(plain, Workload)
    with pytest.raises(WorkloadError):
        workload.describe(items_per_sample=0)


def test_with_options_overrides_and_refuses() -> None:
    """Further options override earlier ones; a step of the user's own takes none."""
    ref = with_options(parse("timm:resnet50?size=96&precision=fp16"), {"precision": "bf16", "optimizer": "adam"})
    assert "timm:resnet50?optimizer=adam&precision=bf16&size=96" == ref.text
    write("train.py")
    own = parse("train.py")
    assert own == with_options(own, {})
    with pytest.raises(WorkloadError, match="a step of your own sets them itself"):
        with_options(own, {"optimizer": "adam"})


def test_the_zoo_table_names_files_that_exist() -> None:
    """Every entry of the zoo has a file of its own and a description."""
    folder = Path(workload.__file__).parent / "zoo"
    for name, entry in ENTRIES.items():
        module, _, function = entry.target.partition(":")
        assert (folder / f"{module.rpartition('.')[2]}.py").is_file(), name
        assert ("build", True) == (function, bool(entry.description))


def run_python(code: str) -> str:
    """Output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_sources_are_the_users_files_and_no_others(tmp_path: Path) -> None:
    """A fresh process that loads a file reports it and its siblings, late imports too, and nothing else."""
    write("late.py", "")
    write("helper.py", "import hypothesis\n")
    write("train.py", "import helper\ndef setup(device):\n    import late\n    return lambda n: n\n")
    code = "from whichgpu.workload import *; from whichgpu import workload as w; ref = w.parse('train.py')\n"
    code += "w.load(ref).setup('cpu'); print(*(p.name for p in w.sources(ref)), *w.distributions(ref), sep='\\n')"
    found = run_python(code).splitlines()
    assert ["helper.py", "late.py", "train.py"] == found[:3]
    assert "hypothesis" in found[3:]
    assert not {"whichgpu", "msgspec", "torch"} & set(found)


def test_naming_workloads_imports_no_torch() -> None:
    """Parsing any form, the zoo's names included, loads neither torch nor a model library."""
    code = "import sys; from whichgpu.workload import parse, zoo_names\n"
    code += "parse('bert-base'); parse('timm:resnet50'); parse('hf:gpt2?seq=3'); zoo_names()\n"
    code += "print({'torch', 'timm', 'transformers', 'torchvision'} & set(sys.modules))"
    assert "set()" == run_python(code)


def test_a_script_that_parses_arguments_is_told_the_cure(tmp_path: Path) -> None:
    """Its top level ends the process; the error says where such code belongs."""
    path = tmp_path / "script.py"
    path.write_text("import sys\nsys.exit(2)\n")

    with pytest.raises(WorkloadError, match=r"SystemExit: 2.*under if __name__ == "):
        load(parse(f"{path}:setup"))
