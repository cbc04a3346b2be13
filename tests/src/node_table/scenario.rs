//! The ways in which a node ends or nearly ends, played on a stage.

use std::fmt;
use std::time::Duration;

use anyhow::Context as _;

use super::outcome::Outcome;
use super::pods::ROLES;
use super::stage::Stage;
use crate::observe_until;
use crate::vm::agent::Install;
use crate::vm::{Kit, KubeletConfig, Seen};

/// An emulated machine with a graceful shutdown of a minute and a half.
const OFF_WITHIN: Duration = Duration::from_mins(5);
const WITHIN: Duration = Duration::from_mins(3);
/// For what a reboot or a lost node makes of the pods; then the table says what is there.
const SETTLED_WITHIN: Duration = Duration::from_secs(100);

/// Seconds that the kubelet and the agent are given: an emulated machine takes 13 s to end one
/// pod that leaves 2 s after its SIGTERM. The stubborn one takes all of the first; nobody waits for
/// what is left of the second when all are told.
const REGULAR_SECONDS: u32 = 40;
const CRITICAL_SECONDS: u32 = 45;

/// What the agent is told: the same periods as the kubelet, and to end every pod that it may.
pub const AGENT_FLAGS: [&str; 4] = [
    "--shutdown-grace-period=85s",
    "--shutdown-grace-period-critical-pods=45s",
    "--bare-pods=deadline-lever",
    "--priority-max=2147483647",
];

/// A way to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// `systemctl poweroff`.
    Poweroff,
    /// `systemctl reboot`.
    Reboot,
    /// A shutdown that logind forgets: it restarts while locks delay it.
    Forgotten,
    /// A shutdown that fails at its very end: its target cannot be started any more.
    Refused,
    /// `kill -9` of the agent in the middle of a reboot.
    AgentKilled,
    /// The kubelet is stopped in the middle of a power-off.
    KubeletStopped,
    /// The power is cut out of the blue, and comes back.
    PowerCut,
    /// The power is cut in the middle of a shutdown, and comes back.
    PowerCutDuring,
}

impl Scenario {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 8] = [
        Self::Poweroff,
        Self::Reboot,
        Self::Forgotten,
        Self::Refused,
        Self::AgentKilled,
        Self::KubeletStopped,
        Self::PowerCut,
        Self::PowerCutDuring,
    ];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poweroff => "poweroff",
            Self::Reboot => "reboot",
            Self::Forgotten => "forgotten",
            Self::Refused => "refused",
            Self::AgentKilled => "agent-killed",
            Self::KubeletStopped => "kubelet-stopped",
            Self::PowerCut => "power-cut",
            Self::PowerCutDuring => "power-cut-during",
        }
    }
}

/// One column of the table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// How the node ends.
    pub scenario: Scenario,
    /// Whether the kubelet's own graceful shutdown is on.
    pub graceful: bool,
    /// How the agent is there, if it is.
    pub agent: Option<Install>,
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graceful = if self.graceful { "on" } else { "off" };
        let agent = match self.agent {
            None => "without agent",
            Some(Install::Host) => "agent as host service",
            Some(Install::DaemonSet) => "agent as DaemonSet",
        };
        write!(
            formatter,
            "{}, kubelet's graceful shutdown {graceful}, {agent}",
            self.scenario.name()
        )
    }
}

/// Plays a case from its machine's start to what is left of it.
pub async fn play(kit: &Kit, case: Case) -> anyhow::Result<Outcome> {
    let mut outcome = None;
    play_in_turn(kit, case.graceful, case.agent, &[case.scenario], |of| outcome = Some(of)).await?;
    outcome.context("nothing was played")
}

/// Plays scenarios one after the other on one machine, which all but the last must leave running;
/// each one's outcome is given to `seen` at once.
pub async fn play_in_turn(
    kit: &Kit,
    graceful: bool,
    agent: Option<Install>,
    scenarios: &[Scenario],
    mut seen: impl FnMut(Outcome),
) -> anyhow::Result<()> {
    let mut kubelet = KubeletConfig::default();
    if graceful {
        kubelet = kubelet.graceful_shutdown(REGULAR_SECONDS + CRITICAL_SECONDS, CRITICAL_SECONDS);
    }
    let mut stage = Stage::set(kit, &kubelet, agent.map(|agent| (agent, &AGENT_FLAGS[..]))).await?;
    let mut before = None;
    for scenario in scenarios {
        let case = Case { scenario: *scenario, graceful, agent };
        if let Some(before) = before.replace(case) {
            stage.clear().await.with_context(|| format!("after {before}"))?;
        }
        stage.fill().await.with_context(|| case.to_string())?;
        let ended = end(&mut stage, case).await.with_context(|| case.to_string())?;
        stage.settle(ended, SETTLED_WITHIN).await?;
        seen(Outcome::of(&stage).await?);
    }
    stage.strike().await
}

/// Where the machine is when the story has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Off for good.
    Off,
    /// It has booted again.
    Again,
    /// It never went.
    Stayed,
}

async fn end(stage: &mut Stage, case: Case) -> anyhow::Result<Ended> {
    match case.scenario {
        Scenario::Poweroff => {
            stage.node.machine().begin_poweroff().await?;
            stage.node.machine_mut().off(OFF_WITHIN).await?;
            Ok(Ended::Off)
        }
        Scenario::KubeletStopped => {
            stage.hold_shutdown().await?;
            stage.node.machine().begin_poweroff().await?;
            stage.in_the_middle(case).await?;
            stage.node.run("systemctl stop kubelet; systemctl stop --no-block holder").await?;
            stage.node.machine_mut().off(OFF_WITHIN).await?;
            Ok(Ended::Off)
        }
        Scenario::Reboot => {
            let before = stage.node.machine().boot_id().await?;
            stage.node.machine().begin_reboot().await?;
            stage.again(&before).await
        }
        Scenario::AgentKilled => {
            let before = stage.node.machine().boot_id().await?;
            stage.node.machine().begin_reboot().await?;
            stage.in_the_middle(case).await?;
            stage.node.run("pkill -KILL -x epilogue-agent || true").await?;
            stage.again(&before).await
        }
        Scenario::PowerCut | Scenario::PowerCutDuring => {
            let before = stage.node.machine().boot_id().await?;
            if case.scenario == Scenario::PowerCutDuring {
                stage.hold_shutdown().await?;
                stage.node.machine().begin_reboot().await?;
                stage.in_the_middle(case).await?;
            }
            stage.node.machine().reset().await?;
            stage.again(&before).await
        }
        Scenario::Forgotten => {
            stage.hold_shutdown().await?;
            stage.node.machine().begin_poweroff().await?;
            stage.in_the_middle(case).await?;
            stage.node.run("systemctl restart systemd-logind && systemctl stop holder").await?;
            Ok(Ended::Stayed)
        }
        Scenario::Refused => {
            stage.hold_shutdown().await?;
            stage.node.machine().begin_poweroff().await?;
            stage.in_the_middle(case).await?;
            let mask = "systemctl mask --runtime --quiet poweroff.target";
            stage.node.run(&format!("{mask} && systemctl stop holder")).await?;
            stage.no_longer_preparing(WITHIN).await?;
            stage.node.run("systemctl unmask --runtime --quiet poweroff.target").await?;
            Ok(Ended::Stayed)
        }
    }
}

impl Stage {
    /// A delay lock of somebody else, and time for it, so that something can happen while the
    /// shutdown is delayed, with the agent's and the kubelet's locks or without.
    async fn hold_shutdown(&self) -> anyhow::Result<()> {
        let hold = "mkdir -p /etc/systemd/logind.conf.d && \
             printf '[Login]\\nInhibitDelayMaxSec=120\\n' > /etc/systemd/logind.conf.d/zzz.conf && \
             systemctl kill --signal=HUP systemd-logind && \
             systemd-run --quiet --unit=holder systemd-inhibit --what=shutdown --mode=delay \
             --who=holder --why=test sleep infinity";
        self.node.run(hold).await?;
        let observe = async || {
            let list = self.node.run(
                "systemd-inhibit --list --no-legend; busctl get-property \
                org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
                InhibitDelayMaxUSec",
            );
            list.await.unwrap_or_default()
        };
        let held = |said: &String| said.contains("holder") && said.contains("t 120000000");
        let seen = observe_until(WITHIN, observe, held).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("the shutdown is not held: {last}"))
    }

    /// Waits until the shutdown was announced, and until the agent has marked its first pod.
    async fn in_the_middle(&self, case: Case) -> anyhow::Result<()> {
        if case.agent.is_some() {
            let marked = async || self.watcher.last().iter().any(Seen::is_disrupted);
            let seen = observe_until(WITHIN, marked, |marked| *marked).await;
            return seen.map(drop).map_err(|_| anyhow::anyhow!("no pod was marked"));
        }
        let observe = async || self.preparing().await;
        let seen = observe_until(WITHIN, observe, |said| said.contains("true")).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("nothing was announced: {last}"))
    }

    async fn no_longer_preparing(&self, within: Duration) -> anyhow::Result<()> {
        let observe = async || self.preparing().await;
        let seen = observe_until(within, observe, |said| said.contains("false")).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("the shutdown goes on: {last}"))
    }

    async fn preparing(&self) -> String {
        let ask = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
                   org.freedesktop.login1.Manager PreparingForShutdown";
        match self.node.run(ask).await {
            Ok(said) => said,
            Err(error) => error.to_string(),
        }
    }

    /// Waits for the other end of a reboot.
    async fn again(&mut self, before: &str) -> anyhow::Result<Ended> {
        self.node.machine_mut().rebooted(before, OFF_WITHIN).await?;
        let boot_id = self.node.machine().boot_id().await?;
        let observe = async || match self.node_object().await {
            Ok(node) => {
                let info = node.status.and_then(|status| status.node_info);
                info.map(|info| info.boot_id).unwrap_or_default()
            }
            Err(error) => error.to_string(),
        };
        let seen = observe_until(WITHIN, observe, |seen| *seen == boot_id).await;
        seen.map_err(|last| anyhow::anyhow!("the API has boot id {last}, not {boot_id}"))?;
        self.node.ready(WITHIN).await?;
        Ok(Ended::Again)
    }

    /// Waits until nothing more is to be expected, or for so long.
    async fn settle(&self, ended: Ended, within: Duration) -> anyhow::Result<()> {
        let observe = async || self.is_settled(ended).await;
        // That something never settles is for the table to say.
        let _ = observe_until(within, observe, |settled| matches!(settled, Ok(true))).await;
        Ok(())
    }

    async fn is_settled(&self, ended: Ended) -> anyhow::Result<bool> {
        let mut lives_on = false;
        for (role, _) in ROLES {
            let Some(seen) = self.last(role) else { return Ok(false) };
            // A DaemonSet's pod stays what it was, whatever becomes of its node.
            lives_on |= !seen.is_terminal() && role != "daemon";
            let counted =
                !role.starts_with("job-") || !seen.is_terminal() || self.is_counted(role).await?;
            let decided = match ended {
                Ended::Off => true,
                Ended::Again => {
                    seen.is_terminal() || seen.gone || seen.restarts > 0 || role == "pull"
                }
                Ended::Stayed => seen.is_terminal() || seen.gone || !seen.is_disrupted(),
            };
            if !counted || !decided {
                return Ok(false);
            }
        }
        let ready = crate::vm::node::ready_condition(&self.node_object().await?);
        Ok(match ended {
            // Of pods that have ended, the end of their node changes nothing.
            Ended::Off => !lives_on || ready.starts_with("Unknown"),
            Ended::Again | Ended::Stayed => ready == "True",
        })
    }

    /// Whether the Job has done with its first pod, and has another one or needs none.
    async fn is_counted(&self, job: &str) -> anyhow::Result<bool> {
        let status = self.jobs().get(job).await?.status.unwrap_or_default();
        let ended = status.conditions.iter().flatten().any(|condition| {
            condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
        });
        let original = self.originals.get(job);
        let other =
            self.pods_of(job).await?.into_iter().any(|pod| pod.metadata.name.as_ref() != original);
        Ok(ended || other)
    }
}
