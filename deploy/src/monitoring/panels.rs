//! Lists the panels of the dashboards: for the cluster, for a node, and for the Job controller.
//!
//! Upstream's Job controller exports metrics of the same names, so each of them is selected by the
//! `job` that `deploy/monitoring/scrape.yaml` sets.

use super::grafana::{Dashboard, Panel, Shows, Variable};

type Queries = &'static [(&'static str, &'static str)];

/// All dashboards.
pub(super) fn dashboards() -> [Dashboard; 3] {
    [CLUSTER, NODE, JOB]
}

const fn number(
    title: &'static str,
    unit: &'static str,
    about: &'static str,
    queries: Queries,
) -> Panel {
    Panel { shows: Shows::Number, title, about, unit, queries }
}

const fn name(title: &'static str, about: &'static str, queries: Queries) -> Panel {
    Panel { shows: Shows::Name, title, about, unit: "none", queries }
}

const fn graph(
    title: &'static str,
    unit: &'static str,
    about: &'static str,
    queries: Queries,
) -> Panel {
    Panel { shows: Shows::Graph, title, about, unit, queries }
}

const CLUSTER: Dashboard = Dashboard {
    name: "cluster",
    title: "Epilogue / Cluster",
    about: "Whether shutdowns would go well, and what becomes of pods.",
    variables: &[Variable {
        name: "namespace",
        of: "epilogue_pod_gc_collector_force_delete_pods_total",
        label: "namespace",
        many: true,
    }],
    panels: &CLUSTER_PANELS,
};

const CLUSTER_PANELS: [Panel; 12] = [
    number(
        "Agents",
        "none",
        "Agents that Prometheus knows, and those that answer.",
        &[
            ("count(up{job='epilogue-agent'})", "known"),
            ("sum(up{job='epilogue-agent'})", "answer"),
        ],
    ),
    number(
        "Delay locks held",
        "none",
        "Nodes on which logind waits for the agent. Agents that observe hold none.",
        &[("sum(epilogue_agent_lock_held)", "held")],
    ),
    number(
        "Agents without policies",
        "none",
        "These agents do not act: apply deploy/policy/agent.",
        &[("sum(epilogue_agent_unbounded)", "unbounded")],
    ),
    number(
        "Controllers",
        "none",
        "Replicas that answer, and those that have taken up Jobs: only the leader does.",
        &[
            ("sum(up{job='epilogue-controller'})", "answer"),
            (
                "count(workqueue_adds_total{job='epilogue-controller', name='job'} > 0) \
                 or vector(0)",
                "lead",
            ),
        ],
    ),
    graph(
        "Disruptions per hour",
        "none",
        "Pods that got DisruptionTarget, or were failed because their node is lost.",
        &[
            (
                "sum(increase(epilogue_agent_status_patches_total{purpose='mark', \
                 result='acknowledged'}[1h]))",
                "by agents",
            ),
            (
                "sum(increase(epilogue_disruption_target_writes_total{action='marked', \
                 result='success'}[1h]))",
                "by the controller",
            ),
            (
                "sum(increase(\
                 epilogue_pod_gc_collector_force_delete_pods_total{reason!~'terminated|\
                 unscheduled|drained'}[1h]))",
                "lost nodes",
            ),
        ],
    ),
    graph(
        "Pods ended by pod GC, per hour",
        "none",
        "By evidence; `terminated` are finished pods beyond a limit.",
        &[(
            "sum by (reason) (increase(\
             epilogue_pod_gc_collector_force_delete_pods_total{namespace=~'$namespace'}[1h]))",
            "{{reason}}",
        )],
    ),
    graph(
        "Unreported pods of shutdowns",
        "none",
        "Pods without a terminal phase when the lock was released, within the last hour.",
        &[(
            "max by (node) (max_over_time(epilogue_agent_shutdown_unreported_pods[1h])) > 0",
            "{{node}}",
        )],
    ),
    graph(
        "Stuck pods",
        "none",
        "Deleted pods that do not terminate, by what the agents see.",
        &[("sum by (reason) (epilogue_agent_stuck_pods)", "{{reason}}")],
    ),
    graph(
        "Wait in queues, p99",
        "s",
        "How long keys wait for a worker of the controller.",
        &[(QUEUE_WAIT, "{{name}}")],
    ),
    graph("Syncs of Jobs, p99", "s", "By what the sync did to pods.", &[(SYNC_P99, "{{action}}")]),
    graph(
        "Age of watches",
        "s",
        "The oldest sign of life. From 180 s on a program is not ready.",
        &[(
            "max by (job, resource) (epilogue_watch_last_event_age_seconds{job=~'epilogue-(\
             agent|controller)'})",
            "{{job}} {{resource}}",
        )],
    ),
    graph(
        "Kills for memory and evictions, per hour",
        "none",
        "By the kernel, by systemd-oomd, and by agents.",
        &[
            (
                "sum by (constraint) (increase(epilogue_agent_oom_kills_total[1h]))",
                "kernel: {{constraint}}",
            ),
            ("sum(increase(epilogue_agent_oomd_kills_total[1h]))", "systemd-oomd"),
            (
                "sum by (signal, result) (increase(epilogue_agent_evictions_total[1h]))",
                "eviction: {{signal}} {{result}}",
            ),
        ],
    ),
];

const QUEUE_WAIT: &str = "histogram_quantile(0.99, sum by (name, le) (rate(\
    workqueue_queue_duration_seconds_bucket{job='epilogue-controller'}[$__rate_interval])))";

const SYNC_P99: &str = "histogram_quantile(0.99, sum by (action, le) (rate(\
    job_controller_job_sync_duration_seconds_bucket{job='epilogue-controller'}[\
    $__rate_interval])))";

/// A series that is new within the hour has its whole value as increase.
const POD_ENDS: &str = "sum by (cause, counted) ((epilogue_pod_ends_total{job='$job'} unless \
    epilogue_pod_ends_total{job='$job'} offset 1h) or \
    increase(epilogue_pod_ends_total{job='$job'}[1h]))";

const DISRUPTION_P99: &str = "histogram_quantile(0.99, sum by (phase, le) (increase(\
    epilogue_disruption_seconds_bucket{job='$job'}[1h])))";

const NODE: Dashboard = Dashboard {
    name: "node",
    title: "Epilogue / Node",
    about: "One node: its readiness to shut down, its last shutdown, its pressure.",
    variables: &[Variable { name: "node", of: "epilogue_agent_pods", label: "node", many: false }],
    panels: &NODE_PANELS,
};

const NODE_PANELS: [Panel; 15] = [
    name(
        "Mode in a shutdown",
        "What the agent does, or would do.",
        &[("epilogue_agent_mode{node='$node'} == 1", "{{mode}}")],
    ),
    name(
        "Mode under pressure",
        "Whether the agent evicts pods.",
        &[("epilogue_agent_pressure_mode{node='$node'} == 1", "{{mode}}")],
    ),
    number(
        "Lock and logind",
        "bool_yes_no",
        "Whether the delay lock is held, and logind is connected.",
        &[
            ("epilogue_agent_lock_held{node='$node'}", "lock"),
            ("epilogue_agent_logind_connected{node='$node'}", "logind"),
        ],
    ),
    number(
        "Delay",
        "s",
        "What logind grants, and what the priority groups and the reports need.",
        &[
            ("epilogue_agent_delay_granted_seconds{node='$node'}", "granted"),
            ("epilogue_agent_delay_wanted_seconds{node='$node'}", "wanted"),
        ],
    ),
    number(
        "Last shutdown",
        "s",
        "From the notice until all pods had DisruptionTarget, were terminal in the API, and the \
         lock was released.",
        &[
            ("epilogue_agent_shutdown_marked_seconds{node='$node'}", "marked"),
            ("epilogue_agent_shutdown_reported_seconds{node='$node'}", "reported"),
            ("epilogue_agent_shutdown_released_seconds{node='$node'}", "released"),
        ],
    ),
    number(
        "Pods of the last shutdown",
        "none",
        "Pods that it terminated or waited for, and those that were not terminal at its end.",
        &[
            ("epilogue_agent_shutdown_candidate_pods{node='$node'}", "all"),
            ("epilogue_agent_shutdown_unreported_pods{node='$node'}", "unreported"),
        ],
    ),
    number(
        "Last notice",
        "dateTimeAsIso",
        "When logind last announced a shutdown.",
        &[("epilogue_agent_shutdown_notice_timestamp_seconds{node='$node'} * 1000", "notice")],
    ),
    number(
        "Token expires in",
        "s",
        "A token of a pod is renewed by the kubelet, that of a host by its timer.",
        &[("epilogue_agent_token_expiry_timestamp_seconds{node='$node'} - time()", "token")],
    ),
    graph(
        "Pressure",
        "percentunit",
        "What is left of each resource, and the thresholds below which pods are evicted.",
        &[
            (
                "epilogue_agent_pressure_available{node='$node'} / \
                 epilogue_agent_pressure_capacity{node='$node'}",
                "{{signal}}",
            ),
            (
                "epilogue_agent_pressure_threshold{node='$node'} / on (instance, signal) \
                 group_left () epilogue_agent_pressure_capacity{node='$node'}",
                "{{signal}} {{kind}} threshold",
            ),
        ],
    ),
    graph(
        "Stalls",
        "percentunit",
        "Share of time in which all tasks of pods wait for memory, or the node for disks.",
        &[("epilogue_agent_pressure_stall_full_ratio{node='$node'}", "{{resource}}")],
    ),
    graph(
        "Evictions per hour",
        "none",
        "By signal, and whether the pod terminated.",
        &[(
            "sum by (signal, result) (increase(epilogue_agent_evictions_total{node='$node'}[1h]))",
            "{{signal}} {{result}}",
        )],
    ),
    graph(
        "OOM kills per hour",
        "none",
        "By what was short, and what became of the container.",
        &[
            (
                "sum by (constraint, outcome) (increase(\
                 epilogue_agent_oom_kills_total{node='$node'}[1h]))",
                "{{constraint}} {{outcome}}",
            ),
            ("increase(epilogue_agent_oomd_kills_total{node='$node'}[1h])", "systemd-oomd"),
        ],
    ),
    graph(
        "Pods",
        "none",
        "The node's pods, and deleted ones that do not terminate.",
        &[
            ("epilogue_agent_pods{node='$node'}", "all"),
            ("epilogue_agent_stuck_pods{node='$node'} > 0", "stuck: {{reason}}"),
        ],
    ),
    graph(
        "API calls per second",
        "reqps",
        "Attempts of the agent to write, by action and result.",
        &[(
            "sum by (action, result) (rate(\
             epilogue_agent_api_calls_total{node='$node'}[$__rate_interval]))",
            "{{action}} {{result}}",
        )],
    ),
    graph(
        "Age of watches",
        "s",
        "From 180 s on the agent is not ready.",
        &[(
            "epilogue_watch_last_event_age_seconds{job='epilogue-agent', node='$node'}",
            "{{resource}}",
        )],
    ),
];

const JOB: Dashboard = Dashboard {
    name: "job",
    title: "Epilogue / Job controller",
    about: "Syncs, pods and queues of the Job controller, under upstream's names.",
    // So the panels also show upstream's controller.
    variables: &[Variable {
        name: "job",
        of: "epilogue_build_info{job=~'.*controller.*'}",
        label: "job",
        many: false,
    }],
    panels: &JOB_PANELS,
};

const JOB_PANELS: [Panel; 14] = [
    graph(
        "Syncs per second",
        "ops",
        "By result, and what the sync did to pods.",
        &[(
            "sum by (result, action) (rate(\
             job_controller_job_syncs_total{job='$job'}[$__rate_interval]))",
            "{{result}} {{action}}",
        )],
    ),
    graph(
        "Syncs, p99",
        "s",
        "By what the sync did to pods.",
        &[(
            "histogram_quantile(0.99, sum by (action, le) (rate(\
             job_controller_job_sync_duration_seconds_bucket{job='$job'}[$__rate_interval])))",
            "{{action}}",
        )],
    ),
    graph(
        "Jobs finished per hour",
        "none",
        "By result and the condition's reason.",
        &[(
            "sum by (result, reason) (increase(\
             job_controller_jobs_finished_total{job='$job'}[1h]))",
            "{{result}} {{reason}}",
        )],
    ),
    graph(
        "Pods finished per second",
        "ops",
        "Pods that the counters of Jobs got.",
        &[(
            "sum by (result) (rate(\
             job_controller_job_pods_finished_total{job='$job'}[$__rate_interval]))",
            "{{result}}",
        )],
    ),
    graph(
        "Pods created per second",
        "ops",
        "By reason and outcome.",
        &[(
            "sum by (reason, status) (rate(\
             job_controller_job_pods_creation_total{job='$job'}[$__rate_interval]))",
            "{{reason}} {{status}}",
        )],
    ),
    graph(
        "Terminal pods with the finalizer, per second",
        "ops",
        "They come (add) and go (delete) at the same rate. Each replica counts all of them.",
        &[(
            "max by (event) (rate(\
             job_controller_terminated_pods_tracking_finalizer_total{job='$job'}[\
             $__rate_interval]))",
            "{{event}}",
        )],
    ),
    graph(
        "Failures by podFailurePolicy, per hour",
        "none",
        "Failed pods that matched a rule, by its action.",
        &[(
            "sum by (action) (increase(\
             job_controller_pod_failures_handled_by_failure_policy_total{job='$job'}[1h]))",
            "{{action}}",
        )],
    ),
    graph(
        "Ends of pods per hour",
        "none",
        "Failed and disrupted pods by cause, and how their Job counted them.",
        &[(POD_ENDS, "{{cause}}: {{counted}}")],
    ),
    graph(
        "Phases of disruptions, p99",
        "s",
        "How long after the first sign of a disruption pods came so far, within an hour.",
        &[(DISRUPTION_P99, "{{phase}}")],
    ),
    graph(
        "Indexes finished per hour",
        "none",
        "By status and the kind of the backoff limit.",
        &[(
            "sum by (status, backoffLimit) (increase(\
             job_controller_job_finished_indexes_total{job='$job'}[1h]))",
            "{{status}} {{backoffLimit}}",
        )],
    ),
    graph(
        "Keys in queues",
        "none",
        "Keys that wait for a worker.",
        &[("max by (name) (workqueue_depth{job='$job'})", "{{name}}")],
    ),
    graph(
        "Wait in queues, p99",
        "s",
        "How long keys wait for a worker.",
        &[(
            "histogram_quantile(0.99, sum by (name, le) (rate(\
             workqueue_queue_duration_seconds_bucket{job='$job'}[$__rate_interval])))",
            "{{name}}",
        )],
    ),
    graph(
        "Retries and skipped syncs per second",
        "ops",
        "Retries follow failed calls. A sync is skipped while a watch is behind our own writes.",
        &[
            (
                "sum by (name) (rate(workqueue_retries_total{job='$job'}[$__rate_interval]))",
                "retry: {{name}}",
            ),
            (
                "sum by (resource) (rate(\
                 job_controller_stale_sync_skips_total{job='$job'}[$__rate_interval]))",
                "skip: {{resource}}",
            ),
        ],
    ),
    graph(
        "Calls to the API that failed, per hour",
        "none",
        "Creations of pods, syncs, broken watches, and events that were dropped.",
        &[
            (
                "sum(increase(job_controller_job_pods_creation_total{job='$job', \
                 status='failed'}[1h]))",
                "creations of pods",
            ),
            (
                "sum(increase(job_controller_job_syncs_total{job='$job', result='error'}[1h]))",
                "syncs",
            ),
            (
                "sum by (resource, reason) (increase(\
                 epilogue_watch_failures_total{job='$job'}[1h]))",
                "watch of {{resource}}: {{reason}}",
            ),
            ("sum(increase(epilogue_events_dropped_total{job='$job'}[1h]))", "events dropped"),
        ],
    ),
];
