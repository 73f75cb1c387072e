"""The metrics of Tessera's own processes."""

from tessera.core.usage.families import Metric

__all__ = [
    "BINDINGS",
    "CONTROLLER_RECONCILES",
    "DECISIONS",
    "EXPORTER_AGE",
    "EXPORTER_FAILURES",
    "EXPORTER_TIME",
    "IMAGES",
    "LOOP_AGE",
    "METRICS_RECONCILE_TIME",
    "METRICS_REQUESTS",
    "METRICS_RULES_INVALID",
    "METRICS_RULE_QUERIES",
    "METRICS_SAMPLES",
    "METRICS_WAKE_QUERIES",
    "MODELS",
    "MODEL_BYTES",
    "MODEL_BYTES_READ",
    "MODEL_BYTES_SERVED",
    "MODEL_SERVERS_LEFT_OUT",
    "MODEL_SERVER_DECISION_AGE",
    "MODEL_SERVER_INPUT_INVALID",
    "MODEL_SERVER_IN_FLIGHT",
    "MODEL_SERVER_PROPOSED",
    "MODEL_SERVER_QUEUE_TIME",
    "MODEL_SERVER_READY",
    "MODEL_SERVER_REPLICAS",
    "OWN_METRICS",
    "PEERS_BANNED",
    "PENDING",
    "PLAN_TIME",
    "QUOTA_BORROWED",
    "QUOTA_GUARANTEED",
    "QUOTA_LEFT_OUT",
    "QUOTA_USED",
    "RECONCILE_TIME",
    "REPARTITIONS",
    "REQUESTS",
    "REQUEST_TIME",
    "SERVER_READY",
]

EXPORTER_AGE = Metric(
    "tessera_exporter_age_seconds", "gauge", "Time since the GPUs were observed, or since that was first tried."
)
EXPORTER_TIME = Metric("tessera_exporter_duration_seconds", "gauge", "How long the last observation of the GPUs took.")
EXPORTER_FAILURES = Metric(
    "tessera_exporter_failures_total", "counter", "Observations of the GPUs that failed, and events not counted."
)
REPARTITIONS = Metric(
    "tessera_repartitions_total",
    "counter",
    "Repartitions of GPUs by the agent since it started, by how they ended.",
    ("outcome",),
)
LOOP_AGE = Metric(
    "tessera_loop_age_seconds", "gauge", "Time since the last successful pass of a loop, or since it began.", ("loop",)
)
IMAGES = Metric("tessera_node_images", "gauge", "Images assigned to the node, by state.", ("state",))
MODELS = Metric("tessera_node_models", "gauge", "Models assigned to the node, by state.", ("state",))
MODEL_BYTES = Metric("tessera_node_models_bytes", "gauge", "Size of the models that new pods of the node get.")
MODEL_BYTES_READ = Metric(
    "tessera_node_models_read_bytes_total",
    "counter",
    "Bytes of models received, by source: peers or stores.",
    ("source",),
)
MODEL_BYTES_SERVED = Metric("tessera_node_models_served_bytes_total", "counter", "Bytes of models sent to peers.")
PEERS_BANNED = Metric(
    "tessera_node_models_peers_banned",
    "gauge",
    "Peers excluded after a bad chunk.",
)
REQUESTS = Metric("tessera_server_requests_total", "counter", "Requests that the server answered.", ("handler", "code"))
REQUEST_TIME = Metric(
    "tessera_server_request_duration_seconds", "histogram", "How long the server took for a request.", ("handler",)
)
BINDINGS = Metric("tessera_server_bindings_total", "counter", "Requests to bind a pod.", ("result",))
SERVER_READY = Metric("tessera_server_ready", "gauge", "Whether the server has synchronized its caches.")
_QUOTA = ("kind", "quota", "cohort", "flavor", "resource")
QUOTA_GUARANTEED = Metric(
    "tessera_quota_guaranteed", "gauge", "Limit of a quota: hard, or the nominal quota of a queue.", _QUOTA
)
QUOTA_USED = Metric("tessera_quota_used", "gauge", "Usage of a quota, including what is borrowed.", _QUOTA)
QUOTA_BORROWED = Metric(
    "tessera_quota_borrowed", "gauge", "Quota that a queue borrows from others of its cohort.", _QUOTA
)
QUOTA_LEFT_OUT = Metric("tessera_quota_left_out", "gauge", "Amounts without series, because there are too many.")
CONTROLLER_RECONCILES = Metric(
    "tessera_controller_reconciles_total", "counter", "Reconciliations of the cluster, by result.", ("result",)
)
RECONCILE_TIME = Metric(
    "tessera_controller_reconcile_duration_seconds",
    "histogram",
    "Seconds to observe, plan and write.",
)
PLAN_TIME = Metric(
    "tessera_controller_plan_duration_seconds",
    "histogram",
    "Seconds to plan the devices of all nodes, without reading and writing; none where nothing has changed.",
)
DECISIONS = Metric(
    "tessera_controller_decisions_total", "counter", "Decisions of the controller for nodes, by event.", ("reason",)
)
PENDING = Metric(
    "tessera_controller_pending_pods",
    "gauge",
    "Pods that no change of layouts would place, by policy and by the nearest change.",
    ("policy", "reason"),
)
METRICS_RECONCILE_TIME = Metric(
    "tessera_metrics_reconcile_duration_seconds", "histogram", "Seconds to observe all model servers and decide."
)
METRICS_SAMPLES = Metric(
    "tessera_metrics_samples_total",
    "counter",
    "Scrapes of model servers' pods, by result: counted, early (nothing to compare with yet), failed.",
    ("result",),
)
METRICS_WAKE_QUERIES = Metric(
    "tessera_metrics_wake_queries_total",
    "counter",
    "Wake-up queries of Prometheus for model servers without a replica, by result: done, failed.",
    ("result",),
)
METRICS_RULE_QUERIES = Metric(
    "tessera_metrics_rule_queries_total",
    "counter",
    "Queries of a Prometheus for the series of prometheus-adapter's rules, by result: done, failed.",
    ("result",),
)
METRICS_RULES_INVALID = Metric(
    "tessera_metrics_rules_invalid",
    "gauge",
    "Whether rules of prometheus-adapter are not served, because their file is broken or they are for too many series.",
)
METRICS_REQUESTS = Metric(
    "tessera_metrics_requests_total", "counter", "Requests to the metrics APIs that were answered.", ("code",)
)
_MODEL_SERVER = ("namespace", "server")
MODEL_SERVER_QUEUE_TIME = Metric(
    "tessera_model_server_queue_time_seconds",
    "gauge",
    "Average queue time of the requests that ended since the previous reconcile.",
    _MODEL_SERVER,
)
MODEL_SERVER_IN_FLIGHT = Metric(
    "tessera_model_server_requests_in_flight", "gauge", "Requests that are running or waiting.", _MODEL_SERVER
)
MODEL_SERVER_REPLICAS = Metric(
    "tessera_model_server_replicas", "gauge", "Replicas in the spec of the server's Deployment.", _MODEL_SERVER
)
MODEL_SERVER_READY = Metric("tessera_model_server_ready_replicas", "gauge", "Replicas that are ready.", _MODEL_SERVER)
MODEL_SERVER_PROPOSED = Metric(
    "tessera_model_server_proposed_replicas",
    "gauge",
    "Replicas by the autoscaler's decision; none where there is no decision.",
    _MODEL_SERVER,
)
MODEL_SERVER_DECISION_AGE = Metric(
    "tessera_model_server_decision_age_seconds",
    "gauge",
    "Age of the decision in force: above 0 where the last good one is kept. None where there is no decision.",
    _MODEL_SERVER,
)
MODEL_SERVER_INPUT_INVALID = Metric(
    "tessera_model_server_input_invalid",
    "gauge",
    "Whether too few pods could be scraped, or an annotation is invalid.",
    _MODEL_SERVER,
)
MODEL_SERVERS_LEFT_OUT = Metric(
    "tessera_model_servers_left_out", "gauge", "Model servers without series, beyond 256 of a namespace."
)

OWN_METRICS: tuple[Metric, ...] = (
    EXPORTER_AGE,
    EXPORTER_TIME,
    EXPORTER_FAILURES,
    REPARTITIONS,
    LOOP_AGE,
    IMAGES,
    MODELS,
    MODEL_BYTES,
    MODEL_BYTES_READ,
    MODEL_BYTES_SERVED,
    PEERS_BANNED,
    REQUESTS,
    REQUEST_TIME,
    BINDINGS,
    SERVER_READY,
    QUOTA_GUARANTEED,
    QUOTA_USED,
    QUOTA_BORROWED,
    QUOTA_LEFT_OUT,
    CONTROLLER_RECONCILES,
    RECONCILE_TIME,
    PLAN_TIME,
    DECISIONS,
    PENDING,
    METRICS_RECONCILE_TIME,
    METRICS_SAMPLES,
    METRICS_WAKE_QUERIES,
    METRICS_RULE_QUERIES,
    METRICS_RULES_INVALID,
    METRICS_REQUESTS,
    MODEL_SERVER_QUEUE_TIME,
    MODEL_SERVER_IN_FLIGHT,
    MODEL_SERVER_REPLICAS,
    MODEL_SERVER_READY,
    MODEL_SERVER_PROPOSED,
    MODEL_SERVER_DECISION_AGE,
    MODEL_SERVER_INPUT_INVALID,
    MODEL_SERVERS_LEFT_OUT,
)
