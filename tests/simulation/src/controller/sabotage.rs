//! Breaks what a controller sees, decides by and remembers, to show that the checks notice it.

use std::sync::Arc;

use controller_core::job::MemoryUpdate;
use controller_core::podgc::{self, StaleReset};
use controller_core::state::Event as StateEvent;
use controller_core::view::Tristate;
use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Sabotage;

/// A boot that no announcement names.
const OTHER_BOOT: &str = "another";

impl Sabotage {
    /// Whether the controller keeps this in mind.
    pub(super) fn remembers(self, change: &MemoryUpdate) -> bool {
        match self {
            Self::ForgetCreations => !matches!(change, MemoryUpdate::Created(_)),
            Self::ForgetDoubts => *change != MemoryUpdate::CreationInDoubt,
            Self::ForgetReleases => !matches!(
                change,
                MemoryUpdate::RemovingFinalizer(_)
                    | MemoryUpdate::PodWritten(_)
                    | MemoryUpdate::JobWritten(_)
            ),
            _ => true,
        }
    }

    /// Changes the settings of pod GC.
    pub(super) fn configure(self, settings: &mut podgc::Settings) {
        match self {
            Self::KeepMarks => settings.stale_reset = StaleReset::Off,
            Self::ClearAtOnce => settings.stale_after = SignedDuration::ZERO,
            _ => {}
        }
    }

    /// Changes what a watch shows.
    pub(super) fn distort(self, event: &mut StateEvent) {
        match event {
            StateEvent::Node(WatchEvent::Shown(node)) => match self {
                Self::EndSilent => node.out_of_service |= node.is_silent(),
                Self::MarkAnyone => {
                    (node.ready, node.says_shutdown) = (Some(Tristate::False), true);
                }
                Self::ClearAtOnce => {
                    (node.announcement, node.says_shutdown) = (None, false);
                    node.ready = Some(Tristate::True);
                }
                Self::UntaintEarly => {
                    node.boot_id = Some(Arc::from(OTHER_BOOT));
                    node.ready = Some(Tristate::True);
                    node.ready_since = Some(Timestamp::UNIX_EPOCH);
                }
                _ => {}
            },
            StateEvent::PodGroup(WatchEvent::Shown(group)) if self == Self::SpareGroup => {
                Arc::make_mut(group).is_disrupted_whole = false;
            }
            StateEvent::Namespace(WatchEvent::Shown(namespace)) if self == Self::KeepConsent => {
                namespace.force_fail_after = Some(SignedDuration::from_secs(60));
            }
            _ => {}
        }
    }
}

/// Makes a node one that is ready, and in no shutdown.
pub(super) fn bring_up(node: &mut Value) {
    node["metadata"]["annotations"] = Value::Null;
    node["status"]["conditions"][0]["status"] = "True".into();
}

/// Makes a node one that has been ready for long in another boot.
pub(super) fn boot_again(node: &mut Value) {
    node["status"]["nodeInfo"]["bootID"] = OTHER_BOOT.into();
    node["status"]["conditions"][0]["status"] = "True".into();
    node["status"]["conditions"][0]["lastTransitionTime"] = "1970-01-01T00:00:00Z".into();
}
