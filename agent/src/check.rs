//! Implements `epilogue-agent check`: gathers the facts, evaluates them, and prints the report.

mod api;
mod pressure;

use std::io::{self, Write as _};
use std::process::ExitCode;

use agent_core::check::api::ApiFacts;
use agent_core::check::facts::{self, Facts};
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
use crate::source::kubelet::{Configz, KubeletSettings, KubeletSource, PERIOD};
use crate::source::logind::{Logind, NAME};

/// Checks the node; 1 if a check fails.
pub fn run(args: CheckArgs, config: CheckConfig) -> anyhow::Result<ExitCode> {
    let sockets = Sockets::new(args.runtime_endpoint, &args.root);
    let host = Host::new(args.root);
    let features = config.features;
    let conf_files = host.logind_conf_files()?;
    let bus_address = args.bus_address.unwrap_or_else(|| host.bus_address());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let (bus, containers, pressure, api, kubelet) = runtime.block_on(async {
        let bus = ask(&bus_address, &host).await;
        let cri = Runtime::new(sockets);
        let containers = cri.probe().await;
        let pressure = pressure::sample_once(&host, &config.kubelet_dir, cri, &features).await;
        let (api, token) = ask_api(config.api).await;
        let settings = KubeletSettings {
            units: config.kubelet_units,
            healthz: config.kubelet_healthz,
            configz: config.kubelet_configz.zip(token).map(|(address, token)| Configz {
                address,
                token: token.into(),
                directory: config.kubelet_dir.clone(),
            }),
            period: PERIOD,
        };
        let kubelet = ask_kubelet(settings, &bus_address, &host).await;
        (bus, containers, pressure, api, kubelet)
    });
    let priority_groups = config.priority_groups;
    let (kubelet, runtime) = (Some(kubelet), containers);
    let facts =
        Facts { bus_address, bus, runtime, kubelet, api, conf_files, priority_groups, pressure };
    let report = judge(&facts, Timestamp::now());
    print(&report, args.output).context("cannot write the report")?;
    Ok(if report.verdict == Verdict::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The API's answers, if the check asks it, and the file of the token that it used.
async fn ask_api(wanted: Option<(ClientOptions, String)>) -> (Option<ApiFacts>, Option<String>) {
    let Some((options, node)) = wanted else { return (None, None) };
    match client::config(&options).await {
        Ok(config) => {
            let facts = api::ask(&config, &node).await;
            (Some(facts), config.auth_info.token_file)
        }
        Err(error) => {
            let error = format!("{:#}", anyhow::Error::from(error));
            (Some(ApiFacts::Silent { server: "the API".to_owned(), error }), None)
        }
    }
}

/// Asks about the kubelet. Leaves out its lease, which the agent may not read.
async fn ask_kubelet(settings: KubeletSettings, bus_address: &str, host: &Host) -> KubeletFacts {
    let no_lease = Box::new(|| None);
    KubeletSource::new(settings, bus_address.to_owned(), host.clone(), no_lease).ask().await
}

async fn ask(address: &str, host: &Host) -> facts::Bus {
    let bus = match Bus::connect(address).await {
        Ok(bus) => bus,
        Err(error) => return facts::Bus::Unreachable(error.message),
    };
    let asked = async {
        let Some(owner) = bus.owner_of(NAME).await? else { return Ok(None) };
        Ok::<_, CallError>(Some(Logind::on(&bus).await?.facts(owner, host).await))
    };
    match asked.await {
        Ok(Some(facts)) => facts::Bus::WithLogind(Box::new(facts)),
        Ok(None) => facts::Bus::WithoutLogind,
        Err(error) => facts::Bus::Mute(error.message),
    }
}

fn print(report: &Report, output: Output) -> io::Result<()> {
    let text = match output {
        Output::Table => report_table::render(report),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    io::stdout().write_all(text.as_bytes())
}
