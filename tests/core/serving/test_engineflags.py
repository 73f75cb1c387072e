"""Options of an engine: Tessera's, the user's, and those that cannot be."""

import re
from pathlib import Path

import pytest

from builders.rendered import VLLM, container, rendered
from tessera.core.serving.engineflags import check_options, given_options
from tessera.errors import InvalidInput

RECORDED = Path(__file__).parents[2] / "data" / "servermetrics"


def test_options_of_the_user_come_before_those_of_tessera() -> None:
    args = container(VLLM | {"args": ["--max_num_seqs", "8", "--no-enable-prefix-caching", "-q", "fp8"]})["args"]
    assert not [each for each in args if each.startswith("--max-num-seqs")]
    assert args[-5:] == ["--max_num_seqs", "8", "--no-enable-prefix-caching", "-q", "fp8"]


BAD_ARGS = {
    "misspelled": ("vllm", ["--max-model-length=1"], "did you mean --max-model-len"),
    "of the other engine": ("triton", ["--max-model-len=1"], "allowUnknownArgs"),
    "a short one that is none": ("triton", ["-q"], "an option of triton"),
    "a level that there is not": ("vllm", ["-O4"], "an option of vllm"),
    "a field of the level": ("vllm", ["-O.mode=3"], "an option of vllm"),
    "a field of a number": ("vllm", ["-ep.x=3"], "an option of vllm"),
    "a port": ("triton", ["--http-port=1"], "the Service and the probes use 8000"),
    "the number of GPUs": ("vllm", ["--tensor-parallel-size", "2"], "spec.gpu.count"),
    "the number of GPUs, in short": ("vllm", ["-tp", "2"], "spec.gpu.count"),
    "the number of GPUs, with underscores": ("vllm", ["--tensor_parallel_size=2"], "spec.gpu.count"),
}


ONE = "a replica is one vLLM"
DEFEATING: dict[str, tuple[str, str]] = {
    "-pp": ("vllm", ONE),
    "-dp": ("vllm", ONE),
    "-dpl": ("vllm", ONE),
    "-dpa": ("vllm", ONE),
    "-dpb": ("vllm", ONE),
    "-dpe": ("vllm", ONE),
    "-dph": ("vllm", ONE),
    "-dpm": ("vllm", ONE),
    "-dpn": ("vllm", ONE),
    "-dpp": ("vllm", ONE),
    "-dpr": ("vllm", ONE),
    "-pcp": ("vllm", ONE),
    "-n": ("vllm", ONE),
    "-r": ("vllm", ONE),
    "-tp": ("vllm", "spec.gpu.count"),
    "--pipeline-parallel-size": ("vllm", ONE),
    "--data-parallel-size": ("vllm", ONE),
    "--data-parallel-size-local": ("vllm", ONE),
    "--data-parallel-rank": ("vllm", ONE),
    "--data-parallel-hybrid-lb": ("vllm", ONE),
    "--prefill-context-parallel-size": ("vllm", ONE),
    "--nnodes": ("vllm", ONE),
    "--node-rank": ("vllm", ONE),
    "--headless": ("vllm", ONE),
    "-asc": ("vllm", "vLLM serves nothing"),
    "--api-server-count": ("vllm", "vLLM serves nothing"),
    "--config": ("vllm", "what is in that file is unknown here"),
    "--max-num-seqs": ("vllm", "a whole number from 1 to 100000"),
    "--max-num-batched-tokens": ("vllm", "a whole number from 1 to 9999999"),
    "--help": ("vllm", "prints the engine's options"),
    "-h": ("vllm", "prints the engine's options"),
    "--disable-log-stats": ("vllm", "the autoscaler needs these metrics"),
    "--shutdown-timeout": ("vllm", "it follows from spec.terminationGracePeriodSeconds: set that"),
    "--exit-timeout-secs": ("triton", "it follows from spec.terminationGracePeriodSeconds: set that"),
    "--uds": ("vllm", "the Service and the probes reach the pod"),
    "--grpc": ("vllm", "the Service and the probes reach the pod"),
    "--host": ("vllm", "the Service and the probes reach the pod"),
    "--ssl-keyfile": ("vllm", "plain HTTP"),
    "--ssl-certfile": ("vllm", "plain HTTP"),
    "--ssl-ca-certs": ("vllm", "plain HTTP"),
    "--enable-ssl-refresh": ("vllm", "plain HTTP"),
    "--allow-http": ("triton", "the probes need HTTP"),
    "--allow-grpc": ("triton", "a port for gRPC"),
    "--allow-metrics": ("triton", "the autoscaler needs these metrics"),
    "--http-address": ("triton", "the Service and the probes reach the pod"),
    "--metrics-address": ("triton", "the Service and the probes reach the pod"),
    "--grpc-server-cert": ("triton", "plain HTTP"),
    "--grpc-server-key": ("triton", "plain HTTP"),
    "--grpc-root-cert": ("triton", "plain HTTP"),
}


@pytest.mark.parametrize("option", DEFEATING)
def test_options_that_defeat_what_is_rendered_are_refused_however_they_are_spelled(option: str) -> None:
    engine, want = DEFEATING[option]
    underscored = option[:2] + option[2:].replace("-", "_")
    spellings = [[option], [option, "0"], [f"{option}=0"], [underscored, "0"], [f"{underscored}=0"]]
    for options in spellings if engine == "vllm" else spellings[1:3]:
        for unknown in (False, True):
            with pytest.raises(InvalidInput, match=re.escape(want)) as caught:
                rendered(
                    {"engine": engine, "args": ["--log-verbose=1", *options][engine == "vllm" :]} | accept(unknown)
                )
            assert caught.value.subject == f"server: spec.args[{int(engine == 'triton')}]", options


def accept(unknown: bool) -> dict[str, bool]:  # one of two
    return {"allowUnknownArgs": unknown}


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("vllm", ["--pipeline-parallel", "2"]),
        ("vllm", ["--data_parallel_size_l=2"]),
        ("vllm", ["--disable-log-st"]),
        ("vllm", ["-as", "0"]),
        ("vllm", ["-pc", "2"]),
        ("vllm", ["-n2"]),
        ("vllm", ["-r1"]),
        ("vllm", ["--api_server_c=0"]),
        ("triton", ["--hel"]),
        ("triton", ["--allow-met=false"]),
        ("triton", ["--allow-ht", "0"]),
    ],
)
def test_an_abbreviation_that_the_engine_accepts_is_the_option(engine: str, options: list[str]) -> None:
    with pytest.raises(InvalidInput, match="cannot be used here"):
        rendered({"engine": engine, "args": options, "allowUnknownArgs": True})


BAD_NUMBERS = [
    f"--{name}{sign}{value}"
    for name in ("max-num-seqs", "max_num_seqs", "api-server-count", "api_server_count")
    for value in ("0", "-1", "+0", "00", "0_0", "1e3", "1k", "")
    for sign in ("=", " ")
]


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("text", BAD_NUMBERS)
def test_numbers_by_which_nothing_is_served_or_scaled_are_refused(text: str, unknown: bool) -> None:
    with pytest.raises(InvalidInput, match="cannot be used here") as caught:
        rendered(VLLM | {"args": ["--seed=1", *text.split(" ")]} | accept(unknown))
    assert caught.value.subject == "server: spec.args[1]"


STRAY: dict[str, tuple[str, list[str]]] = {
    "a model": ("vllm", ["other/model"]),
    "after an option with its value": ("vllm", ["--seed=1", "other/model"]),
    "after a flag": ("vllm", ["--trust-remote-code", "other/model"]),
    "after a flag that is switched off": ("vllm", ["--no-enable-prefix-caching", "other/model"]),
    "a file of arguments": ("vllm", ["@arguments"]),
    "a negative number": ("vllm", ["-3"]),
    "a repository": ("triton", ["repository"]),
    "after Triton's option with its value": ("triton", ["--id", "a", "repository"]),
}


@pytest.mark.parametrize("case", STRAY)
def test_an_argument_that_is_no_option_s_value_is_refused(case: str) -> None:
    engine, args = STRAY[case]
    with pytest.raises(InvalidInput, match="is no option, nor the value of one: remove it; the model is") as caught:
        rendered({"engine": engine, "args": args})
    assert caught.value.subject == f"server: spec.args[{len(args) - 1}]"
    assert container({"engine": engine, "args": args, "allowUnknownArgs": True})["args"][-len(args) :] == args


@pytest.mark.parametrize("option", ["--log_verbose=1", "--log_verbose", "--http_thread_count=2", "--log-verbose.x=1"])
def test_triton_spells_its_options_with_hyphens_alone(option: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not an option of triton 2\.73\.0: did you mean --"):
        rendered({"args": [option]})


def test_a_variable_that_makes_triton_serve_something_else_is_refused() -> None:
    env = [{"name": "A", "value": "b"}, {"name": "AIP_MODE", "value": "PREDICTION"}]
    with pytest.raises(InvalidInput, match=r"in place of HTTP and gRPC: remove it$") as caught:
        rendered({"env": env})
    assert caught.value.subject == "server: spec.env[1]"
    assert container(VLLM | {"env": env})["env"][-1] == env[1]


BAD_VALUES = [
    ["--metrics-config=counter_latencies=false"],
    ["--metrics-config", "counter_latencies=0"],
    ["--metrics-config", "COUNTER_LATENCIES=False"],
    ["--metrics-config=,counter_latencies=false"],
    ["--metrics-config= counter_latencies=false"],
    ["--http-restricted-api= health:key=secret"],
    ["--http-restricted-api=metadata, HEALTH:key=secret"],
    ["--http-restricted-api=health:key=secret"],
    ["--grpc-use-ssl=true"],
    ["--grpc-use-ssl-mutual", "1"],
    ["--http-restricted-api", "metadata,health:key=secret"],
    ["--allow-metrics", "FALSE"],
    ["--allow-metrics"],
]


@pytest.mark.parametrize("options", BAD_VALUES)
def test_values_that_switch_off_what_is_needed_are_refused(options: list[str]) -> None:
    with pytest.raises(InvalidInput, match="cannot be used here"):
        rendered({"args": options})


HARMLESS = {
    "triton": [
        ["--allow-metrics=true", "--allow-http", "1", "--allow-grpc=TRUE"],
        ["--metrics-config=summary_latencies=true", "--metrics-config", "counter_latencies=true"],
        ["--http-restricted-api=metadata:key=health", "--http-address=0.0.0.0"],
        ["--grpc-use-ssl=false", "--grpc-use-ssl-mutual", "0", "--log-verbose", "1", "--load-model=a", "--id", "x"],
    ],
    "vllm": [
        ["--host=0.0.0.0"],
        ["--host", "::", "--no-disable-log-stats", "--no-headless"],
        ["--disable-uvicorn-access-log", "--distributed-executor-backend=mp", "-q", "fp8"],
        ["--api-server-count=2", "-asc", "1", "--max-num-seqs=100000", "--max_num_seqs", "8"],
        ["-O3", "-O=2", "-O", "1", "-cc.mode=3", "-cc.pass_config.enable_noop", "true", "-ac.backend=FLASH_ATTN"],
        ["-sc", '{"method": "ngram"}', "-sc.num_speculative_tokens=4", '-cc={"mode": 3}', "-ep"],
        ["--served-model-name", "a", "b", "--cudagraph-capture-sizes", "1", "2", "4", "--seed", "-3"],
    ],
}


@pytest.mark.parametrize("engine", HARMLESS)
def test_values_that_change_nothing_are_taken(engine: str) -> None:
    for options in HARMLESS[engine]:
        assert container({"engine": engine, "args": options})["args"][-len(options) :] == options


@pytest.mark.parametrize("case", BAD_ARGS)
def test_options_that_cannot_be_are_refused_with_their_place(case: str) -> None:
    engine, args, want = BAD_ARGS[case]
    first = ["--seed", "-3"] if engine == "vllm" else ["--log-verbose", "-3"]
    with pytest.raises(InvalidInput, match=re.escape(want)) as caught:
        rendered({"engine": engine, "args": [*first, *args]})
    assert caught.value.subject == "server: spec.args[2]"


def test_allow_unknown_args_accepts_options_of_another_version() -> None:
    assert "--brand-new" in container({"args": ["--brand-new"], "allowUnknownArgs": True})["args"]


@pytest.mark.parametrize("engine", ["triton", "vllm"])
def test_the_options_that_tessera_writes_are_those_of_the_engine(engine: str) -> None:
    args = container({"engine": engine})["args"]
    check_options(engine, args[engine == "vllm" :], "args")  # type: ignore[arg-type]  # a parameter is a plain text
    assert len(given_options(engine, args)) > 4  # type: ignore[arg-type]  # the same


def test_the_options_of_a_vllm_that_ran_are_known_and_those_that_tessera_writes_are_among_them() -> None:
    """Of vLLM 0.32.0, the release before the one whose options are listed; recorded from its `--help=all`."""
    recorded = (RECORDED / "vllm-options.txt").read_text().split()
    assert len(recorded) > 300
    check_options("vllm", recorded, "args")
    for gpu in ({"memoryGiB": 20}, {"resource": "nvidia.com/gpu", "count": 2}):
        written = container(VLLM | {"gpu": gpu})["args"]
        assert {f"--{each.name}" for each in given_options("vllm", written)} <= {*recorded}
