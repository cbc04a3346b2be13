//! Images go through a registry on this machine without a change.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use epilogue_deploy::release::platform::ALL;
use epilogue_deploy::release::tools::Tools;
use epilogue_deploy::release::{image, publish};
use lab::paths::workspace_root;
use serde_json::Value;

use super::{done, extracted, source, tried};

/// A registry that ends with its test.
pub(super) struct Registry {
    process: Child,
    pub(super) address: String,
}

impl Registry {
    pub(super) fn start(tools: &Tools, directory: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address").to_string();
        drop(free);
        let crane = tools.crane().expect("crane must be buildable");
        let log = fs::File::create(directory.join("registry.log")).expect("a log");
        let process = Command::new(crane)
            .args(["registry", "serve", "--address", &address])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the registry must start");
        let registry = Self { process, address };
        let until = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(&registry.address).is_err() {
            assert!(Instant::now() < until, "the registry does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        registry
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The digest of the manifest in a packed image.
pub(super) fn packed_digest(file: &Path) -> String {
    let layout = extracted(file);
    let index = fs::read(layout.path().join("index.json")).expect("the index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    index["manifests"][0]["digest"].as_str().expect("a digest").to_owned()
}

#[test]
fn what_is_pulled_has_the_digest_and_the_bytes_that_were_packed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let (source, tools) = (source(path), Tools::of(&workspace_root()));
    for platform in ALL {
        // A text for each program of each platform.
        let programs = path.join(platform.arch);
        fs::create_dir_all(&programs).expect("a directory");
        for program in image::PROGRAMS {
            fs::write(programs.join(program), format!("{program} {}", platform.arch))
                .expect("text");
        }
        image::pack(&source, &programs, &platform, path).expect("an image");
    }
    let registry = Registry::start(&tools, path);
    let pushed = publish::images(&source, &tools, &registry.address, &ALL, path);
    let pushed = pushed.expect("must be pushed");
    let name = format!("{}/epilogue", registry.address);
    assert!(pushed.starts_with(&format!("{name}@sha256:")), "{pushed}");

    let crane = tools.crane().expect("crane");
    let tag = format!("{name}:{}", source.version);
    for platform in ALL {
        let of = format!("--platform=linux/{}", platform.arch);
        let pulled = done(Command::new(&crane).args(["digest", &of, &tag]));
        assert_eq!(pulled.trim(), packed_digest(&image::file(&source, &platform, path)));
        let root = path.join(format!("{}.tar", platform.arch));
        done(Command::new(&crane).args(["export", &of, &pushed]).arg(&root));
        let root = extracted(&root);
        for program in image::PROGRAMS {
            let text = fs::read_to_string(root.path().join(program)).expect(program);
            assert_eq!(text, format!("{program} {}", platform.arch));
        }
    }
    let (found, _) = tried(Command::new(&crane).args(["digest", &format!("{name}:other")]));
    assert!(!found, "only what was pushed is there");
}
