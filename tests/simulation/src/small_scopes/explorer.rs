//! Explores every state of a model, breadth-first as far as memory allows: a violation near the
//! start has a shortest path. Also checks that every state can still come to rest without faults.

use std::collections::{HashMap, VecDeque};

use super::scope::Limits;

/// A model whose states are explored.
pub(super) trait Explored {
    type State;
    type Action;

    fn start(&self) -> Self::State;

    /// Everything that can happen next, in a defined order.
    fn next(&self, state: &Self::State) -> Vec<Next<Self::Action, Self::State>>;

    /// Equal for states that differ in names only.
    fn digest(&self, state: &Self::State) -> u64;

    /// What is left to do; `None` if nothing is.
    fn unsettled(&self, state: &Self::State) -> Option<String>;

    /// Describes an action, which happens in this state.
    fn described(&self, state: &Self::State, action: &Self::Action) -> String;
}

/// One thing that can happen.
pub(super) struct Next<A, S> {
    pub(super) action: A,
    /// Whether it may also never happen: a fault, or what nothing forces.
    pub(super) optional: bool,
    pub(super) outcome: Outcome<S>,
}

/// What an action leads to.
pub(super) enum Outcome<S> {
    State(S),
    /// What must not happen.
    Violation(String),
    /// A state beyond the scope.
    Beyond,
}

/// What an exploration found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Different states.
    pub states: usize,
    /// Actions in these states.
    pub transitions: usize,
    /// States in which all is done.
    pub settled: usize,
    /// Actions that lead beyond the scope, and were not followed.
    pub beyond: usize,
    /// The first violation.
    pub violation: Option<Violation>,
}

/// A violation, and how it comes about.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What does not hold.
    pub problem: String,
    /// The actions that lead to it, in words.
    pub path: Vec<String>,
}

/// How a state was first reached: from which one, and by which of its actions.
#[derive(Clone, Copy)]
struct Origin {
    from: u32,
    choice: u16,
}

struct Explorer<'a, M: Explored> {
    model: &'a M,
    known: HashMap<u64, u32>,
    origins: Vec<Origin>,
    /// Actions that nothing has to force, from state to state.
    steps: Vec<(u32, u32)>,
    /// States that are settled, or lead beyond the scope.
    ends: Vec<u32>,
    report: Report,
}

/// Explores all states.
pub(super) fn explore<M: Explored>(model: &M, limits: Limits) -> Report {
    let mut explorer = Explorer {
        model,
        known: HashMap::new(),
        origins: Vec::new(),
        steps: Vec::new(),
        ends: Vec::new(),
        report: Report::default(),
    };
    explorer.run(limits);
    explorer.report.states = explorer.origins.len();
    explorer.report
}

impl<M: Explored> Explorer<'_, M> {
    fn run(&mut self, limits: Limits) {
        let start = self.model.start();
        let mut frontier = VecDeque::new();
        let origin = Origin { from: 0, choice: 0 };
        if let (id, true) = self.enter(&start, origin) {
            frontier.push_back((id, start));
        }
        loop {
            let is_full = frontier.len() > limits.waiting_max;
            let next = if is_full { frontier.pop_back() } else { frontier.pop_front() };
            let Some((id, state)) = next else { break };
            let mut moves = false;
            for (choice, next) in self.model.next(&state).into_iter().enumerate() {
                self.report.transitions += 1;
                let choice = u16::try_from(choice).unwrap_or(u16::MAX);
                let after = match next.outcome {
                    Outcome::State(after) => after,
                    Outcome::Violation(problem) => return self.violate(problem, id, Some(choice)),
                    Outcome::Beyond => {
                        self.report.beyond += 1;
                        self.ends.push(id);
                        continue;
                    }
                };
                let (to, is_new) = self.enter(&after, Origin { from: id, choice });
                if !next.optional && to != id {
                    moves = true;
                    self.steps.push((to, id));
                }
                if is_new {
                    frontier.push_back((to, after));
                }
            }
            match self.model.unsettled(&state) {
                None => {
                    self.report.settled += 1;
                    self.ends.push(id);
                }
                Some(left) if !moves && self.ends.last() != Some(&id) => {
                    return self.violate(format!("nothing more happens: {left}"), id, None);
                }
                Some(_) => {}
            }
            if self.origins.len() > limits.states_max {
                let problem = format!("more than {} states", limits.states_max);
                return self.violate(problem, id, None);
            }
        }
        if let Some(stuck) = self.first_that_cannot_settle() {
            self.violate("does not come to rest any more".to_owned(), stuck, None);
        }
    }

    /// The number of a state, and whether it is new.
    fn enter(&mut self, state: &M::State, origin: Origin) -> (u32, bool) {
        let fresh = u32::try_from(self.origins.len()).unwrap_or(u32::MAX);
        let id = *self.known.entry(self.model.digest(state)).or_insert(fresh);
        if id == fresh {
            self.origins.push(origin);
        }
        (id, id == fresh)
    }

    /// The first state from which no settled one is reached without faults.
    fn first_that_cannot_settle(&mut self) -> Option<u32> {
        self.steps.sort_unstable();
        let mut settles = vec![false; self.origins.len()];
        let mut found = std::mem::take(&mut self.ends);
        while let Some(id) = found.pop() {
            if !std::mem::replace(&mut settles[id as usize], true) {
                let begin = self.steps.partition_point(|(to, _)| *to < id);
                let into = self.steps[begin..].iter().take_while(|(to, _)| *to == id);
                found.extend(into.map(|(_, from)| *from));
            }
        }
        settles.iter().position(|settles| !settles).and_then(|id| u32::try_from(id).ok())
    }

    /// Replays how a state was reached, and then one more action.
    fn violate(&mut self, problem: String, id: u32, last: Option<u16>) {
        let (mut choices, mut at): (Vec<u16>, u32) = (last.into_iter().collect(), id);
        while at > 0 {
            let Origin { from, choice, .. } = self.origins[at as usize];
            choices.push(choice);
            at = from;
        }
        let (mut state, mut path) = (self.model.start(), Vec::new());
        for choice in choices.into_iter().rev() {
            let Some(next) = self.model.next(&state).into_iter().nth(choice.into()) else { break };
            path.push(self.model.described(&state, &next.action));
            let Outcome::State(after) = next.outcome else { break };
            state = after;
        }
        self.report.violation = Some(Violation { problem, path });
    }
}
