//! Finds the sources that a machine has: its firmware names the cloud.

use std::collections::BTreeSet;

use agent_core::protocol::ending::Source;

use super::Choice;
use crate::host::Host;

/// What the firmware says, as the kernel shows it: file, text, and the cloud.
const CLOUDS: [(&str, &str, Source); 3] = [
    ("sys_vendor", "Amazon EC2", Source::Aws),
    ("product_name", "Google Compute Engine", Source::Gce),
    // Hyper-V has the same vendor elsewhere; this tag is that of Azure's machines.
    ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", Source::Azure),
];
/// Where the kernel shows it. A container has the host's, also where it is not mounted.
const FIRMWARE: &str = "/sys/class/dmi/id";

/// The sources to ask.
pub fn found(choice: &Choice, host: &Host) -> BTreeSet<Source> {
    match choice {
        Choice::Auto => {
            let clouds = CLOUDS.into_iter().filter(|(file, text, _)| says(host, file, text));
            let clouds = clouds.map(|(_, _, source)| source);
            [Source::File, Source::Scheduled, Source::Node].into_iter().chain(clouds).collect()
        }
        Choice::Named(sources) => sources.clone(),
    }
}

fn says(host: &Host, file: &str, text: &str) -> bool {
    let path = format!("{FIRMWARE}/{file}");
    let said = std::fs::read_to_string(host.path(&path));
    let said = said.or_else(|_| std::fs::read_to_string(&path));
    said.is_ok_and(|said| said.trim() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_names_the_cloud() {
        let table = [
            ("sys_vendor", "Amazon EC2\n", Some(Source::Aws)),
            ("product_name", "Google Compute Engine\n", Some(Source::Gce)),
            ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n", Some(Source::Azure)),
            ("chassis_asset_tag", "\n", None),
        ];
        for (file, text, cloud) in table {
            let root = tempfile::tempdir().expect("must be creatable");
            let host = Host::new(root.path().to_owned());
            let directory = host.path(FIRMWARE);
            std::fs::create_dir_all(&directory).expect("must be creatable");
            // The machine that tests may be one of a cloud.
            for (file, ..) in CLOUDS {
                std::fs::write(directory.join(file), "").expect("must be writable");
            }
            std::fs::write(directory.join(file), text).expect("must be writable");
            let local = BTreeSet::from([Source::File, Source::Scheduled, Source::Node]);
            let expected = local.into_iter().chain(cloud).collect();
            assert_eq!(found(&Choice::Auto, &host), expected, "{text:?}");
            assert_eq!(found(&Choice::Named(BTreeSet::new()), &host), BTreeSet::new());
        }
    }
}
