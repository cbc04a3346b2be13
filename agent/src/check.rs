//! `epilogue-agent check`: gathers the facts, has them judged, and prints the report.

use std::io::{self, Write as _};
use std::process::ExitCode;

use agent_core::check::facts::{self, Facts};
use agent_core::check::{Report, Verdict, judge};
use agent_core::shutdown::bands::Bands;
use anyhow::Context as _;
use jiff::Timestamp;

use crate::args::{CheckArgs, Output};
use crate::bus::Bus;
use crate::cri::{Runtime, Sockets};
use crate::host::Host;
use crate::source::logind::{Logind, NAME};
use crate::table;

/// Checks the node; 1 if a check fails.
pub fn run(args: CheckArgs, bands: Option<Bands>) -> anyhow::Result<ExitCode> {
    let sockets = Sockets::new(args.runtime_endpoint, &args.root);
    let host = Host::new(args.root);
    let conf_files = host.logind_conf_files()?;
    let bus_address = args.bus_address.unwrap_or_else(|| host.bus_address());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let bus = runtime.block_on(ask(&bus_address, &host));
    let containers = runtime.block_on(async { Runtime::new(sockets).probe().await });
    let facts = Facts { bus_address, bus, runtime: containers, conf_files, bands };
    let report = judge(&facts, Timestamp::now());
    print(&report, args.output).context("cannot write the report")?;
    Ok(if report.verdict == Verdict::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn ask(address: &str, host: &Host) -> facts::Bus {
    let bus = match Bus::connect(address).await {
        Ok(bus) => bus,
        Err(error) => return facts::Bus::Unreachable(error),
    };
    let asked = async {
        let Some(owner) = bus.owner_of(NAME).await? else { return Ok(None) };
        Ok(Some(Logind::on(&bus).await?.facts(owner, host).await))
    };
    match asked.await {
        Ok(Some(facts)) => facts::Bus::WithLogind(Box::new(facts)),
        Ok(None) => facts::Bus::WithoutLogind,
        Err(error) => facts::Bus::Mute(error),
    }
}

fn print(report: &Report, output: Output) -> io::Result<()> {
    let text = match output {
        Output::Table => table::render(report),
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    io::stdout().write_all(text.as_bytes())
}
