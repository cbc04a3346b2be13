//! Tests `epilogue-agent leave` on a host: what it removes, and when it changes nothing.

use agent_core::shutdown::logind_conf::OUR_DROP_IN;

use super::{Candour, Down, Host, Printed, State, agent, lock, numbered};

const STATE_DIR: &str = "var/lib/epilogue-agent";
const JOURNAL: &str = "var/lib/epilogue-agent/journal";

fn drop_in() -> &'static str {
    OUR_DROP_IN.trim_start_matches('/')
}

fn with_leftovers() -> Host {
    let host = Host::start();
    host.write(drop_in(), "[Login]\nInhibitDelayMaxSec=40\n");
    host.write(JOURNAL, "records");
    host
}

impl Host {
    async fn leave(&self) -> Printed {
        agent(self.root.path(), &["leave"]).await
    }

    fn has(&self, path: &str) -> bool {
        self.root.path().join(path).exists()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_in_and_journal_go_and_a_second_time_there_are_none() {
    let host = with_leftovers();
    let printed = host.leave().await;
    assert!(!host.has(drop_in()) && !host.has(STATE_DIR), "{}", printed.stdout);
    // No systemd is there that would make logind read its files again.
    assert!(
        printed.code == 1 && printed.stdout.contains("systemctl kill -s HUP"),
        "{}",
        printed.stdout
    );
    let printed = host.leave().await;
    assert_eq!(printed.code, 0, "{}", printed.stdout);
    assert!(printed.stdout.contains("logind   there is no /etc/systemd"), "{}", printed.stdout);
    assert!(printed.stdout.contains("journal  there is no "), "{}", printed.stdout);
    assert!(printed.stdout.contains("give --kubeconfig"), "{}", printed.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_shutdown_and_alongside_an_agent_nothing_is_changed() {
    type Change = fn(&mut State);
    let table: [(Change, &str); 3] = [
        (|logind| logind.down = Some(Down::AtOnce), "shutting down"),
        (|it| it.locks = numbered(&[lock("epilogue-agent", "delay", 0, 7)]), "stop it first"),
        (|logind| logind.candour = Candour::Refusing, "logind does not say"),
    ];
    for (change, why) in table {
        let host = with_leftovers();
        let _logind = host.logind_with(5, change).await;
        let printed = host.leave().await;
        assert!(
            printed.code == 1 && printed.stderr.contains(why),
            "{} {}",
            printed.stdout,
            printed.stderr
        );
        assert!(host.has(drop_in()) && host.has(JOURNAL));
    }
}
