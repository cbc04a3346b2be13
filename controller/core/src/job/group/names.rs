//! Names Workloads and PodGroups as upstream does, so that either controller finds the other's.

/// The longest name that is a DNS subdomain.
const NAME_MAX: usize = 253;
/// The characters of a hash: none forms a word.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The name of the Workload of a Job.
pub(super) fn workload(job: &str, uid: &str) -> String {
    let hash = hash(&["(types.UID)", uid]);
    let room = NAME_MAX - hash.len() - 1;
    format!("{}-{hash}", cut(job, room))
}

/// The name of the only template in that Workload.
pub(super) fn template(job: &str) -> String {
    format!("{job}-pgt-0")
}

/// The name of a PodGroup of this Workload and template. Of both names as much as fits remains: a
/// short one whole, of two long ones the halves.
pub(super) fn pod_group(workload: &str, template: &str) -> String {
    joined(workload, template, &hash(&[workload, template]))
}

/// The name of a PodGroup where a sibling of the Job has the one above.
pub(super) fn pod_group_of_sibling(workload: &str, template: &str, uid: &str) -> String {
    joined(workload, template, &hash(&[workload, template, uid]))
}

fn joined(workload: &str, template: &str, hash: &str) -> String {
    let room = NAME_MAX - hash.len() - 2;
    let half = room / 2;
    let (of_workload, of_template) = if workload.len() + template.len() <= room {
        (workload.len(), template.len())
    } else if workload.len() <= half {
        (workload.len(), room - workload.len())
    } else if template.len() <= half {
        (room - template.len(), template.len())
    } else {
        (room - half, half)
    };
    format!("{}-{}-{hash}", cut(workload, of_workload), cut(template, of_template))
}

/// FNV-1a in 32 bits, in decimal, each digit as a character of the alphabet.
fn hash(parts: &[&str]) -> String {
    let bytes = parts.iter().flat_map(|part| part.bytes());
    let sum =
        bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let digits = sum.to_string();
    digits.bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

fn cut(name: &str, length: usize) -> &str {
    &name[..name.floor_char_boundary(length)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_kube_controller_manager() {
        assert_eq!(workload("my-job", "uid-123"), "my-job-795ddf89fd");
        assert_eq!(template("my-job"), "my-job-pgt-0");
        assert_eq!(pod_group("my-workload", "my-template"), "my-workload-my-template-67bd6bbcc4");
    }

    #[test]
    fn long_names_are_cut_to_what_the_api_takes() {
        let (long, short) = ("w".repeat(253), "t".repeat(63));
        let name = workload(&long, "uid");
        assert!(name.len() == NAME_MAX && name.starts_with("www"), "{name}");
        let name = pod_group(&long, &short);
        assert!(name.len() == NAME_MAX && name.contains(&format!("w-{short}-")), "{name}");
        let name = pod_group(&short, &long);
        assert!(name.len() == NAME_MAX && name.starts_with(&format!("{short}-w")), "{name}");
        let name = pod_group(&long, &"x".repeat(253));
        let of_workload = name.bytes().filter(|byte| *byte == b'w').count();
        let of_template = name.bytes().filter(|byte| *byte == b'x').count();
        assert_eq!(name.len(), NAME_MAX, "{name}");
        assert!((0..=2).contains(&(of_workload - of_template)), "{name}");
    }
}
