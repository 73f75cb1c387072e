"""Command-line options of the engines, to reject a misspelled one before a pod starts and fails."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from tessera.errors import InvalidInput, shown

__all__ = ["VERSIONS", "Engine", "GivenOption", "check_options", "check_owned", "given_options"]

Engine = Literal["triton", "vllm"]

VERSIONS: Final = {"vllm": "0.33.0", "triton": "2.73.0"}
"""The engine versions of these lists."""

# Source: vllm 0.33.0 on PyPI: `vllm/engine/arg_utils.py`, and the fields of `FrontendArgs` in
# `vllm/entrypoints/common/cli_args.py`. Truth values have a `--no-` form as well.
_VLLM: Final = """
additional-config aggregate-engine-logging all2all-backend allow-credentials allow-deprecated-quantization
allowed-headers allowed-local-media-path allowed-media-domains allowed-methods allowed-origins
anthropic-disabled-thinking-effort api-key api-server-count async-scheduling attention-backend attention-config
aux-output-config block-size chat-template chat-template-content-format code-revision cohere-format
cohere-is-reasoning-model collect-detailed-traces compilation-config config config-format convert
cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb cpu-offload-params
cudagraph-capture-sizes cudagraph-metrics custom-histogram-buckets data-parallel-address data-parallel-backend
data-parallel-external-lb data-parallel-hybrid-lb data-parallel-multi-port-external-lb data-parallel-rank
data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
dcp-kv-cache-interleave-size dcp-q-replicate decode-context-parallel-size default-chat-template-kwargs
default-mm-loras device-ids device-memory-utilization diffusion-config disable-access-log-for-endpoints
disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs
disable-hybrid-kv-cache-manager disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window
disable-uvicorn-access-log distributed-executor-backend distributed-timeout-seconds download-dir
dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval
dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size enable-auto-tool-choice
enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep
enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction
enable-flashinfer-autotune enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas
enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs
enable-per-request-metrics enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details
enable-request-id-headers enable-return-routed-experts enable-scale-out enable-server-load-tracking
enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint
enable-tower-connector-lora enable-trace-replay enforce-eager engram-config eplb-config
exclude-tools-when-tool-choice-none expert-placement-strategy fail-on-environ-validation fault-tolerance-config
fingerprint-mode fingerprint-value fully-sharded-loras gdn-prefill-backend generation-config gpu-memory-utilization
grpc grpc-port h11-max-header-count h11-max-incomplete-event-size headless help hf-config-path hf-overrides hf-token
host ignore-patterns interleave-mm-strings io-processor-plugin ir-op-priority jit-monitor-mode jit-monitor-verbose
kda-decode-backend kda-prefill-backend kernel-config kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes
kv-cache-metrics kv-cache-metrics-sample kv-events-config kv-offloading-backend kv-offloading-size
kv-sharing-fast-prefill kv-transfer-config language-model-only limit-mm-per-prompt linear-backend load-format
log-config-file log-error-stack log-level logging-config logits-processors logprobs-mode
long-prefill-token-threshold long-prefill-token-threshold-adaptive lora-dtype lora-modules lora-target-modules
mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype
mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs
max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs max-num-batched-tokens
max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers
media-io-kwargs middleware mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype
mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-only
mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type
mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides
model-impl model-loader-extra-config moe-backend monokernel nnodes node-rank num-gpu-blocks-override numa-bind
numa-bind-cpus numa-bind-nodes offload-backend offload-group-size offload-num-in-group offload-params
offload-prefetch-step optimization-level otlp-traces-endpoint override-generation-config
per-request-spec-decode-metrics performance-mode pipeline-parallel-size pooler-config port
prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo
prefix-match-unit profiler-config pt-load-map-location quantization quantization-config ray-workers-use-nsight
reasoning-config reasoning-effort-map reasoning-parser reasoning-parser-plugin renderer-num-workers
replayssm-buffer-len response-role return-sampling-mask return-tokens-as-token-ids revision root-path runner
safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
scheduler-reserve-full-isl scheduling-policy seed served-model-name show-hidden-metrics-for-version shutdown-timeout
skip-mm-profiling skip-tokenizer-init sleep-mode-backend sleep-mode-offload-cudagraph sleep-preserve-parameter-names
sparse-indexer-topk-backend spec-method spec-model spec-tokens specialize-active-lora speculative-config
sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval
structured-outputs-config swa-bounded-replay tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision
tokens-only tool-call-parser tool-parser-plugin tool-server tool-strict-level trust-remote-code
trust-request-chat-template trust-request-mm-kwargs ubatch-size uds use-fp64-gumbel use-replayssm use-tqdm-on-load
uvicorn-log-level video-pruning-method video-pruning-rate watchdog-config watermark watermark-config
weight-transfer-config worker-cls worker-extension-cls
"""
_VLLM_SHORT: Final = (
    "-ac -asc -cc -dc -dcp -dp -dpa -dpb -dpe -dph -dpl -dpm -dpn -dpp -dpr -ep -n -pcp -pp -q -r -sc -tp"
)
_VLLM_SHORT_FORM: Final = re.compile(
    rf"(?:{_VLLM_SHORT.replace(' ', '|')}|-(?:ac|cc|dc|sc)\.[^=]+)(?:=.*)?|-O(?:=?[0-3])?"
)
"""A short form: also one field of a configuration, `-cc.mode=3`, and the optimization level, `-O3`.
Source: vllm 0.33.0, `vllm/utils/argparse_utils.py` (`parse_args`)."""
_ALIASES: Final = {
    "-asc": "api-server-count",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpb": "data-parallel-backend",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dpn": "data-parallel-rank",
    "-dpp": "data-parallel-rpc-port",
    "-dpr": "data-parallel-start-rank",
    "-h": "help",
    "-n": "nnodes",
    "-pcp": "prefill-context-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-r": "node-rank",
    "-tp": "tensor-parallel-size",
}
"""Short forms of vLLM's options that cannot be given, or not with every value."""
_VLLM_FLAGS: Final = (
    "enable-auto-tool-choice enable-chunked-prefill enable-expert-parallel enable-lora enable-prefix-caching"
    " enforce-eager trust-remote-code"
)
"""Options of vLLM that are often given and take no value; what follows one is an argument of its own."""

# Source: triton-inference-server/server@e1db8a60 (2.73.0, August 2026), `src/command_line_parser.cc`.
_TRITON: Final = """
allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics allow-sagemaker
allow-vertex-ai backend-config backend-directory buffer-manager-thread-count cache-config cache-directory
cuda-memory-pool-byte-size cuda-virtual-address-size disable-auto-complete-config enable-peer-access exit-on-error
exit-timeout-secs grpc-address grpc-header-forward-pattern grpc-http2-max-ping-strikes
grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size
grpc-infer-response-compression-level grpc-infer-thread-count grpc-keepalive-permit-without-calls
grpc-keepalive-time grpc-keepalive-timeout grpc-max-connection-age grpc-max-connection-age-grace
grpc-max-response-pool-size grpc-port grpc-restricted-protocol grpc-root-cert grpc-server-cert grpc-server-key
grpc-use-ssl grpc-use-ssl-mutual help host-policy http-address http-header-forward-pattern http-max-input-size
http-port http-restricted-api http-thread-count id load-model log-error log-file log-format log-info log-verbose
log-warning metrics-address metrics-config metrics-interval-ms metrics-port min-supported-compute-capability
model-config-name model-control-mode model-load-gpu-limit model-load-retry-count model-load-thread-count
model-namespacing model-repository model-store pinned-memory-pool-byte-size rate-limit rate-limit-resource
repoagent-directory repository-poll-secs response-cache-byte-size reuse-grpc-port reuse-http-port sagemaker-port
sagemaker-safe-port-range sagemaker-thread-count strict-model-config strict-readiness trace-config trace-count
trace-file trace-level trace-log-frequency trace-rate vertex-ai-default-model vertex-ai-port vertex-ai-thread-count
"""
_KNOWN: Final = {"vllm": frozenset(_VLLM.split()), "triton": frozenset(_TRITON.split())}


class GivenOption(NamedTuple):
    """An option among arguments."""

    name: str
    """Its long name, without dashes."""
    place: int
    value: str
    """What stands after `=`, or else the next argument; empty for none."""


def given_options(engine: Engine, args: Sequence[str]) -> tuple[GivenOption, ...]:
    """Return the options among arguments; engines accept a long one's first letters too, where these are of one."""
    found = []
    for place, argument in enumerate(args):
        head, sign, value = argument.partition("=")
        name = _alias(head) if engine == "vllm" else ""
        name = name or _whole(engine, _long(engine, argument))
        if name:
            following = args[place + 1] if place + 1 < len(args) else ""
            found.append(GivenOption(name, place, value if sign else following))
    return tuple(found)


def _options_like(engine: Engine, *beginnings: str) -> tuple[str, ...]:
    """Return the long options that begin so."""
    return tuple(sorted(each for each in _KNOWN[engine] if each.startswith(beginnings)))


class _Owned(NamedTuple):
    """An option that other fields or the objects around the pod decide."""

    instead: str
    """What to do instead."""
    harmless: str = "(?!)"
    """A pattern of the values that change nothing."""


_TRUE, _FALSE = "(?i)true|1", "(?i)false|0"
_ANY_ADDRESS: Final = r"0\.0\.0\.0|::|\[::\]"
_ONE_PROCESS: Final = "a replica is one vLLM on spec.gpu.count GPUs: remove it, and set replicas.max for more"
_PLAIN: Final = "the probes and the Service speak plain HTTP: remove it, and end TLS in a gateway or mesh"
_LISTENS: Final = "the Service and the probes reach the pod by its address: remove it"
_PRINTS: Final = "it prints the engine's options and ends: remove it"
_ENDS: Final = "it follows from spec.terminationGracePeriodSeconds: set that, and remove this"
_SCRAPED: Final = "the autoscaler needs these metrics: remove it"
_OWNED: Final[Mapping[Engine, Mapping[str, _Owned]]] = {
    "vllm": {
        "port": _Owned("remove it: the Service and the probes use 8000"),
        "model": _Owned("set the model in spec.model"),
        "tensor-parallel-size": _Owned("set the number of GPUs in spec.gpu.count"),
        "disable-log-stats": _Owned(_SCRAPED),
        "headless": _Owned(_ONE_PROCESS),
        "shutdown-timeout": _Owned(_ENDS),
        "api-server-count": _Owned("with none, as with --headless, vLLM serves nothing: give 1 or more", "[1-9][0-9]*"),
        "max-num-seqs": _Owned(
            "give a whole number from 1 to 100000: the autoscaler reads it", "[1-9][0-9]{0,4}|100000"
        ),
        "max-num-batched-tokens": _Owned(
            "give a whole number from 1 to 9999999: the size of the KV cache follows from it", "[1-9][0-9]{0,6}"
        ),
        "config": _Owned("what is in that file is unknown here: give its options in spec.args"),
        "help": _Owned(_PRINTS),
        "host": _Owned(_LISTENS, _ANY_ADDRESS),
        "uds": _Owned(_LISTENS),
        "grpc": _Owned(_LISTENS),
        **dict.fromkeys(_options_like("vllm", "ssl-", "enable-ssl-refresh"), _Owned(_PLAIN)),
        **dict.fromkeys(
            (
                *_options_like("vllm", "data-parallel-"),
                "nnodes",
                "node-rank",
                "pipeline-parallel-size",
                "prefill-context-parallel-size",
            ),
            _Owned(_ONE_PROCESS),
        ),
    },
    "triton": {
        "help": _Owned(_PRINTS),
        "grpc-use-ssl": _Owned(_PLAIN, _FALSE),
        "grpc-use-ssl-mutual": _Owned(_PLAIN, _FALSE),
        **dict.fromkeys(_options_like("triton", "grpc-root-cert", "grpc-server-"), _Owned(_PLAIN)),
        "model-repository": _Owned("set the repository in spec.model"),
        "exit-timeout-secs": _Owned(_ENDS),
        "model-store": _Owned("set the repository in spec.model"),
        "http-port": _Owned("remove it: the Service and the probes use 8000"),
        "grpc-port": _Owned("remove it: the Service uses 8001"),
        "metrics-port": _Owned("remove it: the Service uses 8002"),
        "allow-http": _Owned("the probes need HTTP: remove it", _TRUE),
        "allow-grpc": _Owned("the Service has a port for gRPC: remove it", _TRUE),
        "allow-metrics": _Owned(_SCRAPED, _TRUE),
        "metrics-config": _Owned(_SCRAPED, "(?i)(?!.*counter_latencies).*|counter_latencies=(true|1)"),
        "http-restricted-api": _Owned("the probes need `health`: remove that", "(?i)(?![^:]*health).*"),
        **dict.fromkeys(("http-address", "grpc-address", "metrics-address"), _Owned(_LISTENS, _ANY_ADDRESS)),
    },
}


def check_owned(engine: Engine, given: Sequence[GivenOption], subject: str) -> None:
    """Reject an option that another field sets, or that defeats the objects around the pod.

    Args:
        engine: owner of the options.
        given: the options.
        subject: the list's field, for the error.

    Raises:
        InvalidInput: such an option; the message says what to do instead.

    """
    for each in given:
        owned = _OWNED[engine].get(each.name)
        if owned is not None and not re.fullmatch(owned.harmless, each.value):
            found = f"--{each.name} cannot be used here"
            raise InvalidInput(f"{subject}[{each.place}]", found=found, hint=owned.instead)


def _whole(engine: Engine, name: str) -> str:
    """Return the option that a name abbreviates; the name itself if that is none, or not only one."""
    known = _options_like(engine, name)
    return known[0] if name and name not in known and len(known) == 1 else name


def _alias(head: str) -> str:
    """Return the option of a short form, its first letters, where these are of one, or one with its value, as `-n2`."""
    begun = [each for each in {*_VLLM_SHORT.split(), *_ALIASES} if each.startswith(head)] if head[1:] else []
    short = head if head in begun else begun[0] if len(begun) == 1 else head[:2]
    return _ALIASES.get(short, "")


def _long(engine: Engine, argument: str) -> str:
    """Return the listed name of a long option; empty if an argument is none.

    vLLM takes `--max_model_len` and `--compilation-config.mode` too.
    """
    if engine == "triton":
        return argument.partition("=")[0][2:] if argument.startswith("--") else ""
    found = re.match(r"--([A-Za-z0-9_-]+)", argument)
    return found[1].replace("_", "-") if found else ""


def _is_value(engine: Engine, args: Sequence[str], place: int) -> bool:
    """Return whether an argument may be a value of an option before it; some of vLLM's take several."""
    before = place - 1
    while engine == "vllm" and before >= 0 and not _is_option(args[before]):
        before -= 1
    if before < 0 or not _is_option(args[before]) or "=" in args[before]:
        return False
    name = _long(engine, args[before])
    return not (engine == "vllm" and (name in _VLLM_FLAGS.split() or name.startswith("no-")))


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and not re.match(r"-\d", argument)


def check_options(engine: Engine, args: Sequence[str], subject: str) -> None:
    """Reject an option that the engine does not have, and an argument that is not an option's value.

    Args:
        engine: owner of the options.
        args: options, and values that follow them.
        subject: the list's field, for the error.

    Raises:
        InvalidInput: an unknown option; the message lists similar ones. Or a stray argument.

    """
    known = _KNOWN[engine]
    for place, argument in enumerate(args):
        if not _is_option(argument):
            if _is_value(engine, args, place):
                continue
            raise InvalidInput(
                f"{subject}[{place}]",
                found=f"{shown(argument)} is no option, nor the value of one",
                hint="remove it; the model is spec.model's",
            )
        name = _long(engine, argument)
        if name in known or (engine == "vllm" and _VLLM_SHORT_FORM.fullmatch(argument)):
            continue
        if engine == "vllm" and name.startswith("no-") and name[3:] in known:
            continue
        near = ", ".join(f"--{each}" for each in difflib.get_close_matches(name, known, 3))
        accept = "allowUnknownArgs: true accepts those of another version"
        raise InvalidInput(
            f"{subject}[{place}]",
            found=shown(argument),
            expected=f"an option of {engine} {VERSIONS[engine]}",
            hint=f"did you mean {near}? {accept}" if near else accept,
        )
