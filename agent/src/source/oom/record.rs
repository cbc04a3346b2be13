//! Parses OOM kills from the kernel's log: one line for each, the same since Linux 5.0.
//!
//! `6,1234,98765,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=…,mems_allowed=0,
//! oom_memcg=/kubepods.slice/…,task_memcg=/kubepods.slice/…,task=python,pid=4711,uid=1000`

use agent_core::protocol::pressure::OomConstraint;

use crate::cgroups::{Place, place};

/// Maximum length. A process's name has 15 characters, each at most four of the log's.
const NAME_CHARS_MAX: usize = 60;

/// A kill of a pod's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The path of the process's cgroup.
    pub path: String,
    /// The pod and container of the process.
    pub victim: Place,
    /// What was short.
    pub constraint: Constraint,
    /// The process's number in the host, and its name.
    pub process: Option<(u32, String)>,
}

/// What was short, and which limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// A limit on the path from the root to the process: the pod's or container's own, or `None`
    /// for one above all pods.
    Limit(Option<Place>),
    /// The machine's memory, or that of some of its NUMA nodes.
    Machine,
}

impl Constraint {
    /// The constraint in the core's terms.
    pub fn of_pod(&self) -> OomConstraint {
        match self {
            Self::Limit(Some(Place { container_id: Some(_), .. })) => OomConstraint::ContainerLimit,
            Self::Limit(Some(_)) => OomConstraint::PodLimit,
            // A limit above all pods is the node's.
            Self::Limit(None) | Self::Machine => OomConstraint::Node,
        }
    }
}

/// The kills of pods' processes in a text from `/dev/kmsg`.
pub fn kills(text: &str) -> impl Iterator<Item = Record> {
    text.lines().filter_map(kill)
}

fn kill(line: &str) -> Option<Record> {
    let (prefix, message) = line.split_once(';')?;
    // Only the kernel can use its own facility, 0: programs that write to the log cannot.
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    if priority >= 8 {
        return None;
    }
    let fields = message.strip_prefix("oom-kill:constraint=")?;
    // Each key has a comma before it.
    let (constraint, fields) = fields.split_at(fields.find(',')?);
    // Users choose the names of cgroups and processes, and a name may contain a key. Then nothing
    // shows which of the two is the kernel's.
    let after = |key: &str| {
        let (_, rest) = fields.split_once(key)?;
        (!rest.contains(key)).then_some(rest)
    };
    let path = until_key(after(",task_memcg=")?);
    let victim = place(path)?;
    let constraint = match constraint {
        "CONSTRAINT_MEMCG" => Constraint::Limit(place(until_key(after(",oom_memcg=")?))),
        _ => Constraint::Machine,
    };
    Some(Record { path: path.to_owned(), victim, constraint, process: process(fields) })
}

/// A name may resemble fields; the number behind it is the line's last field but one.
fn process(fields: &str) -> Option<(u32, String)> {
    let (rest, _) = fields.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (_, rest) = rest.split_once(",task_memcg=")?;
    let (_, name) = rest.split_once(",task=")?;
    let name = name.chars().filter(|letter| !letter.is_control()).take(NAME_CHARS_MAX);
    Some((pid.parse().ok()?, name.collect()))
}

/// Names of pods' cgroups contain no comma.
fn until_key(text: &str) -> &str {
    text.split(',').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_core::pod::PodUid;
    use proptest::prelude::*;

    const POD: &str = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice";

    fn line(constraint: &str, limit: &str, task: &str) -> String {
        format!(
            "6,1,2,-;oom-kill:constraint={constraint},nodemask=(null),cpuset=x.scope,\
             mems_allowed=0,{limit},task_memcg={task},task=python,pid=4711,uid=1000\n"
        )
    }

    fn only(text: &str) -> Option<Record> {
        let mut found = kills(text);
        let first = found.next();
        assert_eq!(found.next(), None, "{text}");
        first
    }

    #[test]
    fn the_cgroup_at_its_limit_says_what_was_short() {
        use OomConstraint::{ContainerLimit, Node, PodLimit};
        let container = format!("{POD}/cri-containerd-c1.scope");
        let below = format!("{container}/inner");
        let table = [
            ("CONSTRAINT_MEMCG", format!("oom_memcg={container}"), ContainerLimit),
            ("CONSTRAINT_MEMCG", format!("oom_memcg={below}"), ContainerLimit),
            ("CONSTRAINT_MEMCG", format!("oom_memcg={POD}"), PodLimit),
            ("CONSTRAINT_MEMCG", "oom_memcg=/kubepods.slice".into(), Node),
            ("CONSTRAINT_MEMCG", "oom_memcg=/kubepods.slice/kubepods-burstable.slice".into(), Node),
            ("CONSTRAINT_MEMCG", "oom_memcg=/".into(), Node),
            ("CONSTRAINT_NONE", "global_oom".into(), Node),
            ("CONSTRAINT_CPUSET", "global_oom".into(), Node),
            ("CONSTRAINT_MEMORY_POLICY", "global_oom".into(), Node),
        ];
        for (constraint, limit, expected) in table {
            for task in [&container, &below] {
                let found = only(&line(constraint, &limit, task)).expect("must be a kill");
                assert_eq!(found.constraint.of_pod(), expected, "{constraint} {limit}");
                let victim =
                    Place { pod: PodUid("u-1".into()), container_id: Some("c1".to_owned()) };
                assert_eq!(found.victim, victim);
                assert_eq!(found.process, Some((4_711, "python".to_owned())));
            }
        }
    }

    #[test]
    fn a_process_s_name_can_t_lie_about_the_rest() {
        let task = format!("{POD}/crio-c1.scope");
        let named = |name: &str| {
            let text = line("CONSTRAINT_NONE", "global_oom", &task);
            only(&text.replace("task=python", &format!("task={name}")))
        };
        for name in ["a,pid=1,uid=0", "a,task=b", "task_memcg=/x", "x;y", ""] {
            let found = named(name).expect("must be a kill");
            assert_eq!(found.process, Some((4_711, name.to_owned())));
            assert_eq!(found.constraint, Constraint::Machine);
            assert_eq!(found.victim.container_id.as_deref(), Some("c1"));
        }
    }

    #[test]
    fn a_cgroup_s_name_can_t_lie_about_the_rest() {
        let task = format!("{POD}/c1");
        let other = "/kubepods/podother/c9";
        let true_line = line("CONSTRAINT_MEMCG", &format!("oom_memcg={task}"), &task);
        for key in ["task_memcg", "oom_memcg"] {
            let forged = true_line.replace("cpuset=x", &format!("cpuset=x,{key}={other}"));
            assert_eq!(only(&forged), None, "{key} in the name of the cpuset");
            let forged = true_line.replace(&task, &format!("{task},{key}={other}"));
            assert_eq!(only(&forged), None, "{key} in the name of the cgroup");
        }
        let forged = true_line.replace("cpuset=x", "cpuset=x,task=java");
        let found = only(&forged).expect("must be a kill");
        assert_eq!(found.process, Some((4_711, "python".to_owned())));
    }

    #[test]
    fn only_the_kernels_records_about_pods_are_kills() {
        let true_line = line("CONSTRAINT_NONE", "global_oom", &format!("{POD}/c1"));
        assert!(only(&true_line).is_some());
        let by_program = true_line.replacen("6,", "12,", 1);
        assert_eq!(only(&by_program), None);
        let of_service = line("CONSTRAINT_NONE", "global_oom", "/system.slice/a.service");
        assert_eq!(only(&of_service), None);
        let table = [
            "",
            ";",
            "6,1,2,-;",
            "6,1,2,-;oom-kill:",
            "6,1,2,-;oom-kill:constraint=",
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/kubepods/poda/b",
            "x,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/kubepods/poda/b",
            " SUBSYSTEM=memory",
        ];
        for text in table {
            assert_eq!(only(text), None, "{text}");
        }
        let without_process = "6,1,2,-;oom-kill:constraint=X,a=b,task_memcg=/kubepods/poda/b";
        let found = only(without_process).expect("must be a kill");
        assert_eq!((found.process, found.constraint), (None, Constraint::Machine));
    }

    #[test]
    fn several_records_may_be_read_at_once() {
        let one = line("CONSTRAINT_NONE", "global_oom", &format!("{POD}/c1"));
        let text = format!("{one} KEY=value\n6,3,4,-;other\n{one}6,5,6,-;oom-ki");
        assert_eq!(kills(&text).count(), 2);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            kills(&String::from_utf8_lossy(&bytes)).count();
        }

        #[test]
        fn any_fields_are_read_without_harm(
            fields in "[,;=/a-z]{0,9}(,oom_memcg=|,task_memcg=|,task=|,pid=|kubepods|/pod|.){0,9}",
        ) {
            kills(&format!("6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,{fields}")).count();
        }
    }
}
