//! Plays the ways in which a node ends or nearly ends, on a stage.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;

use super::case::{CRITICAL_SECONDS, Case, REGULAR_SECONDS, Scenario};
use super::ledger::JobRow;
use super::outcome::Outcome;
use super::pods::ROLES;
use super::stage::Stage;
use crate::stopwatch::Stopwatch;
use crate::vm::{Kit, KubeletConfig, Seen};
use crate::{observe_costly_until, observe_until};

/// An emulated machine with a graceful shutdown of a minute and a half.
const OFF_WITHIN: Duration = Duration::from_mins(5);
const WITHIN: Duration = Duration::from_mins(3);
/// The agent counts a container as lost with the previous boot if it began ten seconds before this
/// one: clocks may differ by as much. Two more cover times in whole seconds.
const RUN_BEFORE_CUT: Duration = Duration::from_secs(12);
/// Time for the effects of a reboot or a lost node on the pods; then the table is taken. A pod that
/// its kubelet leaves without a sandbox has its end from the agent after a minute.
const SETTLED_WITHIN: Duration = Duration::from_secs(160);
/// The same on a machine that goes on without an agent: its kubelet leaves such a pod for ever.
const LEFT_ALONE_WITHIN: Duration = Duration::from_mins(1);

/// Plays a case from its machine's start to the final state, including the node's loss. If the
/// machine stays off, the second outcome is that after its node was removed from the API.
pub async fn play(kit: &Kit, case: Case) -> anyhow::Result<(Outcome, Option<Outcome>)> {
    let mut table = Table::set(kit, case).await?.waiting_for_lost_node();
    let outcome = table.play(case.scenario).await?;
    let removed = if table.is_off() { Some(table.remove_node().await?) } else { None };
    table.strike().await?;
    Ok((outcome, removed))
}

/// A machine on which scenarios are played one after the other, until one leaves it off.
pub struct Table {
    stage: Stage,
    /// What every story on it has in common.
    set: Case,
    before: Option<Case>,
    ended: Ended,
    /// Whether to wait, for live pods on a machine that is off, until the API has lost their node.
    waits_for_lost_node: bool,
}

impl fmt::Debug for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Table").field("before", &self.before).finish_non_exhaustive()
    }
}

impl Table {
    /// Starts the machine for stories like this case, with the agent if the case has one.
    pub async fn set(kit: &Kit, case: Case) -> anyhow::Result<Self> {
        let mut kubelet = KubeletConfig::default();
        if case.graceful {
            let all = REGULAR_SECONDS + CRITICAL_SECONDS;
            kubelet = kubelet.graceful_shutdown(all, CRITICAL_SECONDS);
        }
        let install = case.agent.map(|agent| (agent, case.flags));
        let commands = case.kubelet.commands();
        let stage = Stage::set(kit, &kubelet, install, commands, case.jobs).await?;
        Ok(Self {
            stage,
            set: case,
            before: None,
            ended: Ended::Stayed,
            waits_for_lost_node: false,
        })
    }

    /// If a story leaves live pods on a machine that is off, it ends only when the API has lost
    /// their node.
    #[must_use]
    pub fn waiting_for_lost_node(mut self) -> Self {
        self.waits_for_lost_node = true;
        self
    }

    /// Plays one scenario with pods of its own. The machine must not be off.
    pub async fn play(&mut self, scenario: Scenario) -> anyhow::Result<Outcome> {
        let case = Case { scenario, ..self.set };
        let stage = &mut self.stage;
        if let Some(before) = self.before.replace(case) {
            stage.clear().await.with_context(|| format!("after {before}"))?;
            stage.scene.took.lap("clear");
        }
        stage.fill().await.with_context(|| case.to_string())?;
        stage.scene.took.lap("pods");
        let ended = end(stage, case).await.with_context(|| case.to_string())?;
        self.ended = ended;
        stage.off_at = (ended == Ended::Off).then(Timestamp::now);
        stage.scene.took.lap("end");
        let waits_for_loss = self.waits_for_lost_node;
        // A drain ends each pod within its grace period, whoever watches.
        let has_end = ended == Ended::Off || scenario == Scenario::Drained;
        let goes_on_alone = !has_end && case.agent.is_none();
        let within = if goes_on_alone { LEFT_ALONE_WITHIN } else { SETTLED_WITHIN };
        stage.settle(ended, waits_for_loss, within).await?;
        stage.scene.took.lap("settled");
        let outcome = Outcome::of(stage).await?;
        stage.check_controller().await?;
        stage.scene.took = Stopwatch::default();
        Ok(outcome)
    }

    /// Removes the node of a machine that is off, and waits until the Jobs are finished, or for as
    /// long as the table waits.
    pub async fn remove_node(&mut self) -> anyhow::Result<Outcome> {
        let stage = &mut self.stage;
        stage.remove_node().await?;
        let finished = async || {
            let jobs = ROLES.iter().filter(|(role, _)| role.starts_with("job-"));
            jobs.filter_map(|(role, _)| stage.job(role)).all(|job| job.is_settled())
        };
        // The table shows it if a Job never finishes.
        let _ = observe_until(SETTLED_WITHIN, finished, |finished| *finished).await;
        stage.scene.took.lap("without its node");
        let outcome = Outcome::of(stage).await?;
        stage.check_controller().await?;
        Ok(outcome)
    }

    /// Asks the chart's release whether it works, as a user does; returns what Helm prints. Fails
    /// if it does not.
    pub async fn test_release(&self) -> anyhow::Result<String> {
        self.stage.test_release().await
    }

    /// The names of the release's objects that the API has.
    pub async fn objects_of_release(&self) -> anyhow::Result<Vec<String>> {
        self.stage.objects_of_release().await
    }

    /// Removes the chart's release, as a user does; returns what Helm prints.
    pub async fn uninstall(&mut self) -> anyhow::Result<String> {
        self.stage.uninstall().await
    }

    /// Labels, annotations and taints of ours that the node has in the API, a line each.
    pub async fn traces(&self) -> anyhow::Result<String> {
        let node = self.stage.node_object().await?.context("the node is there")?;
        let annotations = node.metadata.annotations.unwrap_or_default().into_keys();
        let labels = node.metadata.labels.unwrap_or_default().into_keys();
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let names = annotations.chain(labels).chain(taints.into_iter().map(|taint| taint.key));
        let ours = names.filter(|name| name.contains("epilogue"));
        Ok(ours.map(|name| name + "\n").collect())
    }

    /// Runs a command on the node.
    pub async fn run(&self, command: &str) -> anyhow::Result<String> {
        Ok(self.stage.scene.node.run(command).await?)
    }

    /// Whether the last scenario left the machine off.
    pub fn is_off(&self) -> bool {
        self.ended == Ended::Off
    }

    /// The directory of the logs of control plane and node.
    pub fn dir(&self) -> &Path {
        self.stage.scene.control_plane.dir()
    }

    /// Stops everything.
    pub async fn strike(self) -> anyhow::Result<()> {
        self.stage.strike().await
    }
}

/// State of the machine at the end of the story.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Off for good.
    Off,
    /// It has rebooted.
    Again,
    /// It never went down.
    Stayed,
}

async fn end(stage: &mut Stage, case: Case) -> anyhow::Result<Ended> {
    match case.scenario {
        Scenario::Poweroff => {
            stage.scene.node.machine().begin_poweroff().await?;
            stage.scene.node.machine_mut().off(OFF_WITHIN).await?;
            Ok(Ended::Off)
        }
        Scenario::KubeletStopped => {
            stage.hold_shutdown().await?;
            stage.scene.node.machine().begin_poweroff().await?;
            stage.in_the_middle(case).await?;
            let stop = "systemctl stop kubelet; systemctl stop --no-block holder";
            stage.scene.node.run(stop).await?;
            stage.scene.node.machine_mut().off(OFF_WITHIN).await?;
            Ok(Ended::Off)
        }
        Scenario::Reboot
        | Scenario::KubeletFrozen
        | Scenario::KubeletGone
        | Scenario::KubeletKilled
        | Scenario::Unannounced => {
            let before = stage.scene.node.machine().boot_id().await?;
            stage.scene.node.run(&reboot(case.scenario)).await?;
            stage.again(&before).await
        }
        Scenario::Drained => {
            stage.drain().await?;
            Ok(Ended::Stayed)
        }
        Scenario::SoftReboot => {
            let begin = "systemd-run --quiet --no-block --collect systemctl soft-reboot";
            stage.scene.node.run(begin).await?;
            stage.scene.node.machine_mut().restarted(OFF_WITHIN).await?;
            stage.scene.node.ready(WITHIN).await?;
            Ok(Ended::Again)
        }
        Scenario::AgentKilled => {
            let before = stage.scene.node.machine().boot_id().await?;
            stage.scene.node.machine().begin_reboot().await?;
            stage.in_the_middle(case).await?;
            stage.scene.node.run("pkill -KILL -x epilogue-agent || true").await?;
            stage.again(&before).await
        }
        Scenario::PowerCut | Scenario::PowerCutDuring => stage.cut_power(case).await,
        Scenario::PowerLost => Ok(stage.lose_power().await),
        Scenario::Forgotten => {
            stage.hold_shutdown().await?;
            stage.scene.node.machine().begin_poweroff().await?;
            stage.in_the_middle(case).await?;
            stage
                .scene
                .node
                .run("systemctl restart systemd-logind && systemctl stop holder")
                .await?;
            Ok(Ended::Stayed)
        }
        Scenario::Refused => {
            stage.hold_shutdown().await?;
            stage.scene.node.machine().begin_poweroff().await?;
            stage.in_the_middle(case).await?;
            let mask = "systemctl mask --runtime --quiet poweroff.target";
            stage.scene.node.run(&format!("{mask} && systemctl stop holder")).await?;
            stage.no_longer_preparing(WITHIN).await?;
            stage.scene.node.run("systemctl unmask --runtime --quiet poweroff.target").await?;
            Ok(Ended::Stayed)
        }
    }
}

/// One command, as the shell of an emulated machine takes a second.
fn reboot(scenario: Scenario) -> String {
    let reboot = "systemd-run --quiet --no-block --collect systemctl reboot";
    match scenario {
        Scenario::KubeletFrozen => format!("systemctl kill --signal=STOP kubelet && {reboot}"),
        Scenario::KubeletGone => format!("systemctl stop kubelet && {reboot}"),
        Scenario::KubeletKilled => {
            let main = "systemctl show --property=MainPID --value kubelet";
            format!("{reboot} && kill -KILL $({main})")
        }
        Scenario::Unannounced => reboot.replace("reboot", "start reboot.target"),
        _ => reboot.to_owned(),
    }
}

impl Stage {
    /// The power comes back.
    async fn cut_power(&mut self, case: Case) -> anyhow::Result<Ended> {
        let before = self.scene.node.machine().boot_id().await?;
        if case.scenario == Scenario::PowerCut {
            tokio::time::sleep(RUN_BEFORE_CUT).await;
        } else {
            self.hold_shutdown().await?;
            self.scene.node.machine().begin_reboot().await?;
            self.in_the_middle(case).await?;
        }
        self.scene.node.machine().reset().await?;
        self.again(&before).await
    }

    async fn lose_power(&mut self) -> Ended {
        tokio::time::sleep(RUN_BEFORE_CUT).await;
        self.scene.node.machine_mut().cut().await;
        Ended::Off
    }

    /// Takes a foreign delay lock, so that something can happen while the shutdown is delayed, with
    /// or without the locks of agent and kubelet.
    async fn hold_shutdown(&self) -> anyhow::Result<()> {
        let hold = "mkdir -p /etc/systemd/logind.conf.d && \
             printf '[Login]\\nInhibitDelayMaxSec=120\\n' > /etc/systemd/logind.conf.d/zzz.conf && \
             systemctl kill --signal=HUP systemd-logind && \
             systemd-run --quiet --unit=holder systemd-inhibit --what=shutdown --mode=delay \
             --who=holder --why=test sleep infinity";
        self.scene.node.run(hold).await?;
        let observe = async || {
            let list = self.scene.node.run(
                "systemd-inhibit --list --no-legend; busctl get-property \
                org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
                InhibitDelayMaxUSec",
            );
            list.await.unwrap_or_default()
        };
        let held = |said: &String| said.contains("holder") && said.contains("t 120000000");
        let seen = observe_costly_until(WITHIN, observe, held).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("the shutdown is not held: {last}"))
    }

    /// Waits until the shutdown is announced, and until the agent has marked its first pod.
    async fn in_the_middle(&self, case: Case) -> anyhow::Result<()> {
        if case.agent.is_some() {
            let marked = async || self.scene.watcher.last().iter().any(Seen::is_disrupted);
            let seen = observe_until(WITHIN, marked, |marked| *marked).await;
            return seen.map(drop).map_err(|_| anyhow::anyhow!("no pod was marked"));
        }
        let observe = async || self.preparing().await;
        let seen = observe_costly_until(WITHIN, observe, |said| said.contains("true")).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("nothing was announced: {last}"))
    }

    async fn no_longer_preparing(&self, within: Duration) -> anyhow::Result<()> {
        let observe = async || self.preparing().await;
        let seen = observe_costly_until(within, observe, |said| said.contains("false")).await;
        seen.map(drop).map_err(|last| anyhow::anyhow!("the shutdown goes on: {last}"))
    }

    async fn preparing(&self) -> String {
        let ask = "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
                   org.freedesktop.login1.Manager PreparingForShutdown";
        match self.scene.node.run(ask).await {
            Ok(said) => said,
            Err(error) => error.to_string(),
        }
    }

    /// Waits for the end of a reboot.
    async fn again(&mut self, before: &str) -> anyhow::Result<Ended> {
        self.scene.node.machine_mut().rebooted(before, OFF_WITHIN).await?;
        let boot_id = self.scene.node.machine().boot_id().await?;
        let booted = self.scene.node.run("awk '/^btime/ {print $2}' /proc/stat").await?;
        self.booted_at = Some(Timestamp::from_second(booted.trim().parse()?)?);
        let observe = async || match self.node_object().await {
            Ok(node) => {
                let info = node.and_then(|node| node.status?.node_info);
                info.map(|info| info.boot_id).unwrap_or_default()
            }
            Err(error) => error.to_string(),
        };
        let seen = observe_costly_until(WITHIN, observe, |seen| *seen == boot_id).await;
        seen.map_err(|last| anyhow::anyhow!("the API has boot id {last}, not {boot_id}"))?;
        self.scene.node.ready(WITHIN).await?;
        Ok(Ended::Again)
    }

    /// Waits until no more changes are expected, or for at most this long.
    async fn settle(
        &self,
        ended: Ended,
        waits_for_loss: bool,
        within: Duration,
    ) -> anyhow::Result<()> {
        let observe = async || self.is_settled(ended, waits_for_loss).await;
        // The table shows it if something never settles.
        let _ = observe_costly_until(within, observe, |settled| matches!(settled, Ok(true))).await;
        Ok(())
    }

    async fn is_settled(&self, ended: Ended, waits_for_loss: bool) -> anyhow::Result<bool> {
        let mut lives_on = false;
        for (role, _) in ROLES {
            let Some(seen) = self.last(role) else { return Ok(false) };
            // A DaemonSet's pod keeps its state, whatever happens to its node.
            lives_on |= !seen.is_terminal() && role != "daemon";
            let counted = !role.starts_with("job-") || self.is_settled_job(role, &seen);
            let decided = match ended {
                Ended::Off => true,
                // A restart alone may be of a slow start before the end.
                Ended::Again => {
                    let runs_again = seen.restarts > 0 && seen.container == "running";
                    seen.is_terminal() || seen.gone || runs_again || role == "pull"
                }
                Ended::Stayed => seen.is_terminal() || seen.gone || !seen.is_disrupted(),
            };
            if !counted || !decided {
                return Ok(false);
            }
        }
        let ready = self.node_object().await?.as_ref().map(crate::vm::node::ready_condition);
        let ready = ready.context("the node is in the API until it is removed")?;
        Ok(match ended {
            // The end of their node changes nothing for pods that have ended.
            Ended::Off => !waits_for_loss || !lives_on || ready.starts_with("Unknown"),
            Ended::Again | Ended::Stayed => ready == "True",
        })
    }

    /// Whether the Job agrees with its pods, and is finished if its first pod has ended.
    fn is_settled_job(&self, job: &str, first: &Seen) -> bool {
        let lives_on = !first.is_terminal() && !first.gone;
        let is_settled =
            |row: JobRow| if lives_on { row.wrong.is_empty() } else { row.is_settled() };
        self.job(job).is_some_and(is_settled)
    }
}
