//! `epilogue-agent leave` on a host: what it removes, and when it changes nothing.

use agent_core::shutdown::logind_conf::OUR_DROP_IN;

use super::{Host, Said, agent, lock, seconds};
use crate::login1::Behaviour;

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
    async fn leave(&self) -> Said {
        agent(self.root.path(), &["leave"]).await
    }

    fn has(&self, path: &str) -> bool {
        self.root.path().join(path).exists()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn drop_in_and_journal_go_and_a_second_time_there_are_none() {
    let host = with_leftovers();
    let said = host.leave().await;
    assert!(!host.has(drop_in()) && !host.has(JOURNAL), "{}", said.stdout);
    // Nobody is there who would have logind read its files again.
    assert!(said.code == 1 && said.stdout.contains("systemctl kill -s HUP"), "{}", said.stdout);
    let said = host.leave().await;
    assert_eq!(said.code, 0, "{}", said.stdout);
    assert!(said.stdout.contains("logind   there is no /etc/systemd"), "{}", said.stdout);
    assert!(said.stdout.contains("journal  there is no "), "{}", said.stdout);
    assert!(said.stdout.contains("give --kubeconfig"), "{}", said.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_shutdown_and_beside_an_agent_nothing_is_changed() {
    let preparing = Behaviour { preparing: true, ..seconds(5) };
    let held = Behaviour { locks: vec![lock("epilogue-agent", "delay", 0, 7)], ..seconds(5) };
    let mute = Behaviour { mute: true, ..seconds(5) };
    let table =
        [(preparing, "shutting down"), (held, "stop it first"), (mute, "logind does not say")];
    for (behaviour, why) in table {
        let host = with_leftovers();
        let _logind = host.logind(behaviour).await;
        let said = host.leave().await;
        assert!(said.code == 1 && said.stderr.contains(why), "{} {}", said.stdout, said.stderr);
        assert!(host.has(drop_in()) && host.has(JOURNAL));
    }
}
