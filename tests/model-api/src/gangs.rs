//! The API's rules about Workloads and PodGroups, and about what Jobs and pods say of them.

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::refusal::Refusal;

/// The finalizer that admission gives to each PodGroup. kube-controller-manager removes it when no
/// pod that may still run is in the group.
pub(crate) const PROTECTION: &str = "scheduling.k8s.io/podgroup-protection";
/// The field of a pod's spec that names its PodGroup.
const GROUP: &str = "schedulingGroup";

/// Removes what an API without gang scheduling does not keep of a new object.
pub(crate) fn drop_fields(kind: Kind, object: &mut Value) {
    let fields = match kind {
        Kind::Job => &[("/spec", "scheduling"), ("/spec/template/spec", GROUP)][..],
        Kind::Pod => &[("/spec", GROUP)],
        _ => &[],
    };
    for (path, field) in fields {
        let of = object.pointer_mut(path).and_then(Value::as_object_mut);
        of.map(|of| of.remove(*field));
    }
}

/// Fills in a new PodGroup.
pub(crate) fn prepare_new(group: &mut Value) {
    let finalizers = &mut group["metadata"]["finalizers"];
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    let finalizers = finalizers.as_array_mut().expect("it was made a list");
    if finalizers.iter().all(|it| it != PROTECTION) {
        finalizers.push(PROTECTION.into());
    }
    group["status"] = json!({});
}

/// Checks a PodGroup that is created.
pub(crate) fn check_new_pod_group(spec: &Value) -> Result<(), Refusal> {
    if let Some(reference) = spec.get("workloadRef") {
        has_text(reference, "spec.workloadRef", &["workloadName", "templateName"])?;
    }
    check_template(spec, "spec")
}

/// Checks a Workload that is created.
pub(crate) fn check_new_workload(spec: &Value) -> Result<(), Refusal> {
    if let Some(controller) = spec.get("controllerRef") {
        has_text(controller, "spec.controllerRef", &["kind", "name"])?;
    }
    let Some(templates) = spec["podGroupTemplates"].as_array().filter(|all| !all.is_empty()) else {
        let problem = "Required value";
        return Err(Refusal::invalid("spec.podGroupTemplates", "FieldValueRequired", problem));
    };
    for (number, template) in templates.iter().enumerate() {
        let field = format!("spec.podGroupTemplates[{number}]");
        has_text(template, &field, &["name"])?;
        if templates.iter().filter(|it| it["name"] == template["name"]).count() > 1 {
            return Err(Refusal::invalid(&field, "FieldValueDuplicate", "Duplicate value"));
        }
        check_template(template, &field)?;
    }
    Ok(())
}

fn has_text(object: &Value, field: &str, parts: &[&str]) -> Result<(), Refusal> {
    let lacks = |part: &&&str| object[**part].as_str().is_none_or(str::is_empty);
    match parts.iter().find(lacks) {
        None => Ok(()),
        Some(part) => {
            let field = format!("{field}.{part}");
            Err(Refusal::invalid(&field, "FieldValueRequired", "Required value"))
        }
    }
}

fn check_template(template: &Value, field: &str) -> Result<(), Refusal> {
    let field = format!("{field}.schedulingPolicy");
    let policy = &template["schedulingPolicy"];
    if policy.get("basic").is_some() == policy.get("gang").is_some() {
        let problem = "must specify exactly one of: `basic`, `gang`";
        return Err(Refusal::invalid(&field, "FieldValueInvalid", problem));
    }
    check_size(policy, &field)
}

/// Checks the size of a gang, if this policy asks for one.
fn check_size(policy: &Value, field: &str) -> Result<(), Refusal> {
    let is_valid = |gang: &Value| gang["minCount"].as_i64().is_some_and(|size| size >= 1);
    if policy.get("gang").is_none_or(is_valid) {
        return Ok(());
    }
    let problem = "must be greater than or equal to 1";
    Err(Refusal::invalid(&format!("{field}.gang.minCount"), "FieldValueInvalid", problem))
}

/// Checks an update of either kind: of the specs only the sizes of gangs may change.
pub(crate) fn check_update(new: &Value, old: &Value) -> Result<(), Refusal> {
    let (spec, before) = (&new["spec"], &old["spec"]);
    if sizeless(spec) != sizeless(before) {
        return Err(Refusal::immutable("spec"));
    }
    let templates = spec["podGroupTemplates"].as_array().into_iter().flatten().chain([spec]);
    templates.into_iter().try_for_each(|it| check_size(&it["schedulingPolicy"], "spec"))
}

/// A spec without the sizes of its gangs.
fn sizeless(spec: &Value) -> Value {
    let mut spec = spec.clone();
    take_size(&mut spec);
    let templates = spec.get_mut("podGroupTemplates").and_then(Value::as_array_mut);
    templates.into_iter().flatten().for_each(take_size);
    spec
}

fn take_size(of: &mut Value) {
    let gang = of.pointer_mut("/schedulingPolicy/gang").and_then(Value::as_object_mut);
    gang.map(|gang| gang.remove("minCount"));
}

/// Checks what a Job says: a gang is no larger than the pods that may run at once.
pub(crate) fn check_job(spec: &Value) -> Result<(), Refusal> {
    let size = &spec["scheduling"]["schedulingPolicy"]["gang"]["minCount"];
    let parallelism = spec["parallelism"].as_i64().unwrap_or(1);
    if size.as_i64().is_none_or(|size| (1..=parallelism).contains(&size)) {
        return Ok(());
    }
    let field = "spec.scheduling.schedulingPolicy.gang.minCount";
    let problem = format!("must not be greater than parallelism ({parallelism})");
    Err(Refusal::invalid(field, "FieldValueInvalid", &problem))
}

/// Checks an update of what a Job says: only the size of its gang may change.
pub(crate) fn check_job_update(new: &Value, old: &Value) -> Result<(), Refusal> {
    let of = |spec: &Value| spec.get("scheduling").map(sizeless);
    if of(new) == of(old) { Ok(()) } else { Err(Refusal::immutable("spec.scheduling")) }
}
