//! Defines the command line, and checks that its values fit together.

mod check;
mod host;
mod install_status;
mod leave;
mod leave_status;
mod pressure;
mod run;
mod scrape;

use agent_core::shutdown::priority_groups::{
    PriorityGroupFlags, PriorityGroups, PriorityGroupsError,
};
use agent_core::time_span::TimeSpan;
use clap::{Parser, Subcommand, ValueEnum};

pub use check::{CheckArgs, CheckConfig};
pub use host::{HostArgs, KubeletArgs, KubeletPlace};
pub use install_status::InstallStatusArgs;
pub use leave::{LeaveArgs, LeaveConfig};
pub use leave_status::LeaveStatusArgs;
pub use pressure::{PressureArgs, PressureArgsError};
pub use run::{Config, RunArgs, RunArgsError};
pub use scrape::{ScrapeArgs, ScrapeConfig};

/// Terminates the pods of a node that shuts down, and makes sure that the API records how each one
/// ended.
#[derive(Debug, Parser)]
#[command(name = "epilogue-agent", version, about, arg_required_else_help = true)]
pub struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The program's subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the agent of this node until it receives SIGTERM or SIGINT.
    Run(RunArgs),
    /// Checks whether a shutdown of this node would go well, and says what to do if not. Changes
    /// nothing; takes a delay lock for a moment. Exits with 1 if a check fails.
    Check(CheckArgs),
    /// Removes what an agent has left here: logind's drop-in, its journal, and the annotation,
    /// taint and conditions of the node. Stop the agent first.
    Leave(LeaveArgs),
    /// Waits until the pods of DaemonSets have run `leave` on each node. Changes nothing. Exits
    /// with 1 if a node with a live kubelet is not done in time.
    LeaveStatus(LeaveStatusArgs),
    /// Waits until an installation works: its policies are bound, its agents are ready, and a
    /// controller holds the lease. Prints what to do if not. Changes nothing. Exits with 1 if a
    /// part does not work in time.
    InstallStatus(InstallStatusArgs),
}

/// The flags that set how long pods may take to terminate.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are the flags' names")]
pub struct PriorityGroupArgs {
    /// Time in which all pods together must terminate, such as 30s or 2min; 0 terminates none.
    /// Without it and the two flags below: what the kubelet is configured to give, also where it
    /// holds no lock; else 30s, of which 10s are for critical pods.
    #[arg(long, value_name = "DURATION")]
    shutdown_grace_period: Option<TimeSpan>,
    /// The part of that time that is reserved for critical pods (priority 2000000000 and above).
    #[arg(long, value_name = "DURATION")]
    shutdown_grace_period_critical_pods: Option<TimeSpan>,
    /// Replaces the two flags above: seconds for the pods from each priority on, such as
    /// 0=20,2000000000=10.
    #[arg(long, value_name = "PRIORITY=SECONDS,...", allow_hyphen_values = true)]
    shutdown_grace_period_by_pod_priority: Option<String>,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Output {
    /// A table for people.
    Table,
    /// JSON for programs.
    Json,
}

impl PriorityGroupArgs {
    /// The priority groups that the flags make.
    pub fn priority_groups(&self) -> Result<Option<PriorityGroups>, PriorityGroupsError> {
        self.flags().priority_groups()
    }

    fn flags(&self) -> PriorityGroupFlags {
        PriorityGroupFlags {
            total: self.shutdown_grace_period,
            critical: self.shutdown_grace_period_critical_pods,
            by_priority: self.shutdown_grace_period_by_pod_priority.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_flags_make_priority_groups() {
        let priority_groups = |flags: &[&str]| {
            let line = ["epilogue-agent", "check"].iter().chain(flags);
            let Command::Check(args) = Args::parse_from(line).command else {
                panic!("must be check")
            };
            args.config().map(|config| {
                config
                    .priority_groups
                    .map_or_else(String::new, |priority_groups| priority_groups.to_string())
            })
        };
        assert_eq!(priority_groups(&[]).expect("must be priority groups"), "0=20,2000000000=10");
        let list = priority_groups(&["--shutdown-grace-period-by-pod-priority", "-7=1,0=20"]);
        assert_eq!(list.expect("must be priority groups"), "-7=1,0=20");
        let total = priority_groups(&[
            "--shutdown-grace-period=2m",
            "--shutdown-grace-period-critical-pods=30",
        ]);
        assert_eq!(total.expect("must be priority groups"), "0=90,2000000000=30");
        assert_eq!(priority_groups(&["--shutdown-grace-period=0"]).expect("must be off"), "");
        let error = priority_groups(&[
            "--shutdown-grace-period=5s",
            "--shutdown-grace-period-critical-pods=6s",
        ]);
        assert!(error.is_err());
    }
}
