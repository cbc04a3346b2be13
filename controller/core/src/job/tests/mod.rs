//! Tests acceptance cases and boundary values, as one sync each. Every test also passes the three
//! checks of [`crate::checks`].

mod adoption;
mod backoff;
mod backoff_limit_per_index;
mod builders;
mod cause;
mod conditions;
mod counted_once;
mod deadline;
mod divergences;
mod end_events;
mod ends;
mod failure_policy;
mod gang_recovery;
mod golden;
mod group;
mod indexed;
mod lost;
mod on_failure;
mod options;
mod plan_text;
mod pod_template;
mod properties;
mod rejected;
mod replace_early;
mod replacement_policy;
mod rule_names;
mod scaling;
mod sequences;
mod size;
mod success_policy;
mod suspend;
mod tracking;
mod unknown;
mod victims;
