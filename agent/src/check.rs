//! Implements `epilogue-agent check`: gathers the facts, evaluates them, and prints the report.

mod api;
mod pressure;

use std::io::{self, Write as _};
use std::process::ExitCode;

use agent_core::check::api::ApiFacts;
use agent_core::check::facts::{Bus as BusFacts, Facts};
use agent_core::check::{Report, Verdict, judge};
use agent_core::protocol::node::KubeletFacts;
use anyhow::Context as _;
use epilogue_runtime::client::{self, ClientOptions};
use jiff::Timestamp;

use crate::args::{CheckArgs, CheckConfig, Output};
use crate::bus::{Bus, CallError};
use crate::cri::{Runtime, Sockets};
use crate::host::Host;
use crate::report_table;
use crate::run::block_on;
use crate::source::kubelet::{Access, KubeletSettings, KubeletSource, PERIOD};
use crate::source::lease::LeaseAge;
use crate::source::logind::{Logind, NAME};

/// Checks the node; 1 if a check fails.
pub fn run(args: CheckArgs, config: CheckConfig) -> anyhow::Result<ExitCode> {
    let output = args.output;
    let facts = block_on(facts(args, config))?;
    let report = judge(&facts, Timestamp::now());
    print(&report, output).context("cannot write the report")?;
    Ok(if report.verdict == Verdict::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn facts(args: CheckArgs, config: CheckConfig) -> anyhow::Result<Facts> {
    let root = args.host.root;
    let cri = Runtime::new(Sockets::new(args.runtime_endpoint, &root));
    let host = Host::new(root);
    let conf_files = host.logind_conf_files()?;
    let bus_address = host.bus_address();
    let bus = ask(&bus_address, &host).await;
    let (api, access) = ask_api(config.api).await;
    let settings = KubeletSettings { place: config.kubelet.clone(), access, period: PERIOD };
    // The kubelet names the runtime.
    let kubelet = Some(ask_kubelet(settings, &bus_address, &host, &cri).await);
    let runtime = cri.probe().await;
    let features = &config.features;
    let pressure = pressure::sample_once(&host, &config.kubelet.dir, cri, features).await;
    let CheckConfig { priority_groups, observes, .. } = config;
    Ok(Facts {
        bus_address,
        bus,
        runtime,
        kubelet,
        api,
        conf_files,
        priority_groups,
        observes,
        pressure,
    })
}

/// The API's answers, if the check asks it, and what the kubelet can be asked with.
async fn ask_api(wanted: Option<(ClientOptions, String)>) -> (Option<ApiFacts>, Option<Access>) {
    let Some((options, node)) = wanted else { return (None, None) };
    match client::config(&options).await {
        Ok(config) => {
            let facts = api::ask(&config, &node).await;
            let authorities = config.root_cert.unwrap_or_default();
            let access = |token| Access { token, node, authorities };
            (Some(facts), config.auth_info.token_file.map(access))
        }
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::from(error));
            (Some(ApiFacts::Silent { server: "the API".to_owned(), error }), None)
        }
    }
}

/// Asks about the kubelet. Leaves out its lease, which the agent may not read.
async fn ask_kubelet(
    settings: KubeletSettings,
    bus_address: &str,
    host: &Host,
    cri: &Runtime,
) -> KubeletFacts {
    let no_lease = LeaseAge::default();
    let source = KubeletSource::new(settings, bus_address.to_owned(), host.clone(), no_lease);
    source.naming(Some(cri.clone())).ask().await
}

async fn ask(address: &str, host: &Host) -> BusFacts {
    let bus = match Bus::connect(&address.to_owned().into()).await {
        Ok(bus) => bus,
        Err(error) => return BusFacts::Unreachable(error.message),
    };
    let asked = async {
        let Some(owner) = bus.owner_of(NAME).await? else { return Ok(None) };
        Ok::<_, CallError>(Some(Logind::on(&bus).await?.facts(owner, host).await))
    };
    match asked.await {
        Ok(Some(facts)) => BusFacts::WithLogind(Box::new(facts)),
        Ok(None) => BusFacts::WithoutLogind,
        Err(error) => BusFacts::Mute(error.message),
    }
}

fn print(report: &Report, output: Output) -> io::Result<()> {
    let text = match output {
        Output::Table => report_table::render(report),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    io::stdout().write_all(text.as_bytes())
}
