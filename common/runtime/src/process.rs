//! Exports the standard Prometheus metrics of the process, and the build's version.

use std::sync::{Mutex, PoisonError};

use procfs::process::Process;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge, IntGauge, IntGaugeVec, Opts, Registry};

use crate::telemetry;

/// Registers the process's metrics, those of its log, and `epilogue_build_info`.
pub fn register(registry: &Registry, version: &str, revision: &str) -> prometheus::Result<()> {
    registry.register(Box::new(ProcessCollector::new()?))?;
    telemetry::register(registry)?;
    let info = IntGaugeVec::new(
        Opts::new("epilogue_build_info", "The build that runs; the value is always 1."),
        &["version", "revision"],
    )?;
    info.with_label_values(&[version, revision]).set(1);
    registry.register(Box::new(info))
}

/// Reads /proc/self at each scrape.
///
/// The prometheus crate's own collector counts CPU time in whole seconds, too coarse to compare
/// the cost of one Job.
#[derive(Debug)]
struct ProcessCollector {
    cpu_seconds: Counter,
    counted: Mutex<()>,
    resident_bytes: IntGauge,
    virtual_bytes: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
    threads: IntGauge,
    start_time: Gauge,
}

impl ProcessCollector {
    fn new() -> prometheus::Result<Self> {
        let whole = |name: &str, help: &str| IntGauge::new(name, help);
        Ok(Self {
            cpu_seconds: Counter::new(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            )?,
            counted: Mutex::new(()),
            resident_bytes: whole(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
            )?,
            virtual_bytes: whole("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            open_fds: whole("process_open_fds", "Number of open file descriptors.")?,
            max_fds: whole("process_max_fds", "Maximum number of open file descriptors.")?,
            threads: whole("process_threads", "Number of OS threads in the process.")?,
            start_time: Gauge::new(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            )?,
        })
    }

    fn read(&self) -> procfs::ProcResult<()> {
        let process = Process::myself()?;
        let stat = process.stat()?;
        let ticks = procfs::ticks_per_second();
        // Concurrent scrapes must not count the same CPU time twice.
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let total = seconds(stat.utime + stat.stime, ticks);
        self.cpu_seconds.inc_by((total - self.cpu_seconds.get()).max(0.0));
        drop(counted);
        let pages = i64::try_from(stat.rss).unwrap_or(i64::MAX);
        self.resident_bytes.set(pages.saturating_mul(procfs::page_size() as i64));
        self.virtual_bytes.set(i64::try_from(stat.vsize).unwrap_or(i64::MAX));
        self.threads.set(stat.num_threads);
        self.open_fds.set(process.fd_count()? as i64);
        if let procfs::process::LimitValue::Value(max) = process.limits()?.max_open_files.soft_limit
        {
            self.max_fds.set(i64::try_from(max).unwrap_or(i64::MAX));
        }
        let booted = procfs::boot_time_secs()?;
        self.start_time.set(seconds(booted * ticks + stat.starttime, ticks));
        Ok(())
    }

    fn metrics(&self) -> [&dyn Collector; 7] {
        [
            &self.cpu_seconds,
            &self.resident_bytes,
            &self.virtual_bytes,
            &self.open_fds,
            &self.max_fds,
            &self.threads,
            &self.start_time,
        ]
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Without /proc the last values stay; the scrape must not fail because of it.
        if let Err(error) = self.read() {
            tracing::debug!(%error, "cannot read the process's own metrics");
        }
        self.metrics().into_iter().flat_map(Collector::collect).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks since the epoch fit a double's 53 bits")]
fn seconds(ticks: u64, per_second: u64) -> f64 {
    ticks as f64 / per_second as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_s_own_figures_are_exported() {
        let registry = Registry::new();
        register(&registry, "1.2.3", "abc").expect("must register");
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .expect("must encode");
        assert!(text.contains("epilogue_build_info{revision=\"abc\",version=\"1.2.3\"} 1"));
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_threads"] {
            let value = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            let value: f64 = value.and_then(|text| text.parse().ok()).expect(name);
            assert!(value > 0.0, "{name} {value}");
        }
        assert!(text.contains("process_cpu_seconds_total "));
        assert!(text.contains("# TYPE process_cpu_seconds_total counter"), "{text}");
        let now = jiff::Timestamp::now().as_second();
        let start = text.lines().find_map(|line| line.strip_prefix("process_start_time_seconds "));
        let start: f64 = start.and_then(|text| text.parse().ok()).expect("must have a start");
        #[expect(clippy::cast_precision_loss, reason = "seconds since the epoch are small")]
        let age = now as f64 - start;
        assert!((-5.0..86_400.0).contains(&age), "age {age}");
    }
}
