//! Decides which tests may start now: as many as keep the machine's cores busy, the longest first.
//! Pure.

use std::time::Duration;

use super::suites::{CORE_PARTS, Rule, WAITS, Weight};

/// The content of one process: the tests of one program, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Index of the program.
    pub(super) program: usize,
    /// Index of the suite.
    pub(super) suite: usize,
    pub(super) tests: Vec<String>,
    pub(super) rule: Rule,
    /// Whether its tests share something in the process, so that they stay together.
    pub(super) is_group: bool,
}

/// Waiting units that may run alongside an emulated machine, which leaves a part of a core.
const ALONGSIDE_MAX: usize = 2;

/// The waiting units, and the free share of the machine.
#[derive(Debug)]
pub(super) struct Schedule {
    /// In the order of their start, the last one first.
    waiting: Vec<Unit>,
    /// Units that start when only emulated machines are left.
    alongside: Vec<Unit>,
    running_alongside: usize,
    /// Units that take the time of the cores that others leave.
    background: Vec<Unit>,
    running_background: usize,
    cores: usize,
    parts: u16,
    taken: u16,
    /// Those that run in their turn.
    running: usize,
    /// The running one that others wait for.
    whole: Option<Weight>,
}

impl Schedule {
    /// A schedule of these units on this many cores.
    pub(super) fn new(mut units: Vec<Unit>, cores: usize) -> Self {
        if units.iter().all(|unit| unit.rule.weight != Weight::Emulated) {
            let alongside = units.iter_mut().filter(|it| it.rule.weight == Weight::Alongside);
            alongside.for_each(|unit| unit.rule.weight = WAITS);
        }
        // Of equals, the longest come first, so that no long one is left over at the end.
        units.sort_by_key(rank);
        let (background, units): (Vec<_>, Vec<_>) =
            units.into_iter().partition(|unit| unit.rule.weight == Weight::Background);
        let (alongside, waiting) =
            units.into_iter().partition(|unit| unit.rule.weight == Weight::Alongside);
        let cores = cores.max(1);
        let parts = u16::try_from(cores).unwrap_or(u16::MAX).saturating_mul(CORE_PARTS);
        Self {
            waiting,
            alongside,
            running_alongside: 0,
            background,
            running_background: 0,
            cores,
            parts,
            taken: 0,
            running: 0,
            whole: None,
        }
    }

    /// The next unit that fits; its share is taken until [`Schedule::end`].
    pub(super) fn start(&mut self) -> Option<Unit> {
        let in_turn = self.start_in_turn().or_else(|| self.start_alongside());
        in_turn.or_else(|| self.start_in_background())
    }

    /// A unit that mostly waits, once it can delay no other unit.
    fn start_alongside(&mut self) -> Option<Unit> {
        let emulated = |unit: &Unit| unit.rule.weight == Weight::Emulated;
        let runs_alone = self.running == 0 || self.whole == Some(Weight::Emulated);
        let free = self.waiting.iter().all(emulated) && runs_alone;
        if !free || self.running_alongside >= ALONGSIDE_MAX {
            return None;
        }
        let unit = self.alongside.pop()?;
        self.running_alongside += 1;
        Some(unit)
    }

    /// A unit that delays no other, unless one needs the machine for itself.
    fn start_in_background(&mut self) -> Option<Unit> {
        let next = self.waiting.last().map(|unit| unit.rule.weight);
        let is_wanted = [self.whole, next].contains(&Some(Weight::Machine));
        if is_wanted || self.running_background >= self.cores {
            return None;
        }
        let unit = self.background.pop()?;
        self.running_background += 1;
        Some(unit)
    }

    fn start_in_turn(&mut self) -> Option<Unit> {
        let fits = |unit: &Unit| {
            // On a small machine one unit runs, however heavy it is.
            self.running == 0 || self.taken + self.parts_of(unit.rule.weight) <= self.parts
        };
        let is_part = |unit: &Unit| matches!(unit.rule.weight, Weight::Parts(_));
        let index = match self.waiting.last()?.rule.weight {
            Weight::Parts(_) => self.waiting.iter().rposition(|it| is_part(it) && fits(it))?,
            Weight::Machine if self.running_alongside + self.running_background > 0 => return None,
            _ => (self.running == 0).then(|| self.waiting.len() - 1)?,
        };
        let unit = self.waiting.remove(index);
        self.taken += self.parts_of(unit.rule.weight);
        self.running += 1;
        self.whole = (!is_part(&unit)).then_some(unit.rule.weight);
        Some(unit)
    }

    /// Whether such a unit has not started yet.
    pub(super) fn waits(&self, which: impl Fn(&Unit) -> bool) -> bool {
        self.waiting.iter().chain(&self.alongside).chain(&self.background).any(which)
    }

    /// Returns the share of a unit.
    pub(super) fn end(&mut self, unit: &Unit) {
        match unit.rule.weight {
            Weight::Alongside => self.running_alongside -= 1,
            Weight::Background => self.running_background -= 1,
            weight => {
                self.taken -= self.parts_of(weight);
                self.running -= 1;
                self.whole = None;
            }
        }
    }

    /// Lets a unit start again, next of its kind.
    pub(super) fn put_back(&mut self, unit: Unit) {
        match unit.rule.weight {
            Weight::Alongside => self.alongside.push(unit),
            Weight::Background => self.background.push(unit),
            _ => {
                // The next of its kind is the last of these.
                let before = rank(&unit).0;
                let index = self.waiting.iter().take_while(|it| rank(it).0 <= before).count();
                self.waiting.insert(index, unit);
            }
        }
    }

    fn parts_of(&self, weight: Weight) -> u16 {
        match weight {
            Weight::Parts(parts) => parts,
            Weight::Machine | Weight::Emulated => self.parts,
            Weight::Alongside | Weight::Background => 0,
        }
    }
}

/// Units with the greatest rank come first. Those that need the whole machine do so before others
/// load it. An emulated machine comes last: others report sooner, and some run alongside it.
fn rank(unit: &Unit) -> (u8, Duration) {
    let rank = match unit.rule.weight {
        Weight::Machine => 2,
        Weight::Parts(_) => 1,
        Weight::Emulated | Weight::Alongside | Weight::Background => 0,
    };
    (rank, unit.rule.limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(name: &str, weight: Weight, limit: u64) -> Unit {
        let rule = Rule { weight, limit: Duration::from_secs(limit) };
        Unit { program: 0, suite: 0, tests: vec![name.to_owned()], rule, is_group: false }
    }

    fn started(schedule: &mut Schedule) -> Vec<Unit> {
        std::iter::from_fn(|| schedule.start()).collect()
    }

    fn names(units: &[Unit]) -> Vec<&str> {
        units.iter().map(|unit| unit.tests[0].as_str()).collect()
    }

    #[test]
    fn as_many_run_as_the_machine_has_cores_for() {
        let core = Weight::Parts(CORE_PARTS);
        let units = vec![unit("a", core, 9), unit("b", core, 8), unit("c", core, 7)];
        let mut schedule = Schedule::new(units, 2);
        let first = started(&mut schedule);
        assert_eq!(names(&first), ["a", "b"]);
        schedule.end(&first[1]);
        assert_eq!(names(&started(&mut schedule)), ["c"]);
    }

    #[test]
    fn what_fits_goes_before_what_has_to_wait() {
        let units = vec![
            unit("most", Weight::Parts(CORE_PARTS - 1), 9),
            unit("core", Weight::Parts(CORE_PARTS), 8),
            unit("little", Weight::Parts(1), 1),
        ];
        let mut schedule = Schedule::new(units, 1);
        let first = started(&mut schedule);
        assert_eq!(names(&first), ["most", "little"]);
        for unit in &first {
            schedule.end(unit);
        }
        assert_eq!(names(&started(&mut schedule)), ["core"]);
    }

    #[test]
    fn what_needs_the_machine_is_alone_and_first() {
        let units = vec![
            unit("machine", Weight::Machine, 99),
            unit("a", Weight::Parts(1), 1),
            unit("second", Weight::Machine, 98),
            unit("background", Weight::Background, 97),
        ];
        let mut schedule = Schedule::new(units, 2);
        for expected in ["machine", "second"] {
            let running = started(&mut schedule);
            assert_eq!(names(&running), [expected]);
            schedule.end(&running[0]);
        }
        let rest = started(&mut schedule);
        assert_eq!(names(&rest), ["a", "background"]);
        // One that starts again waits for all others.
        schedule.put_back(unit("machine", Weight::Machine, 99));
        for unit in &rest {
            assert!(schedule.start().is_none());
            schedule.end(unit);
        }
        assert_eq!(names(&started(&mut schedule)), ["machine"]);
    }

    #[test]
    fn what_only_computes_takes_what_others_leave() {
        let background = |name: &str, limit| unit(name, Weight::Background, limit);
        let units = vec![
            background("b1", 4),
            background("b2", 3),
            background("b3", 2),
            unit("core", Weight::Parts(CORE_PARTS), 9),
            unit("emulated", Weight::Emulated, 99),
        ];
        let mut schedule = Schedule::new(units, 2);
        let first = started(&mut schedule);
        assert_eq!(names(&first), ["core", "b1", "b2"]);
        schedule.end(&first[0]);
        assert_eq!(names(&started(&mut schedule)), ["emulated"]);
        schedule.end(&first[1]);
        let last = started(&mut schedule);
        assert_eq!(names(&last), ["b3"]);
        schedule.end(&last[0]);
        schedule.put_back(background("b3", 2));
        assert_eq!(names(&started(&mut schedule)), ["b3"]);
    }

    #[test]
    fn tests_that_only_wait_run_alongside_emulated_machines_and_nothing_else() {
        let alongside = |name: &str, limit| unit(name, Weight::Alongside, limit);
        let units = vec![
            alongside("b1", 3),
            unit("emulated", Weight::Emulated, 99),
            alongside("b2", 2),
            alongside("b3", 1),
            unit("machine", Weight::Machine, 98),
            unit("a", Weight::Parts(1), 1),
            unit("emulated 2", Weight::Emulated, 97),
        ];
        let mut schedule = Schedule::new(units, 2);
        for expected in ["machine", "a"] {
            let running = started(&mut schedule);
            assert_eq!(names(&running), [expected]);
            schedule.end(&running[0]);
        }
        let running = started(&mut schedule);
        assert_eq!(names(&running), ["emulated", "b1", "b2"]);
        schedule.end(&running[1]);
        let third = started(&mut schedule);
        assert_eq!(names(&third), ["b3"]);
        schedule.end(&running[0]);
        assert_eq!(names(&started(&mut schedule)), ["emulated 2"]);
        // A unit that ended its process starts again.
        schedule.put_back(third[0].clone());
        schedule.end(&third[0]);
        assert_eq!(names(&started(&mut schedule)), ["b3"]);
    }

    #[test]
    fn without_an_emulated_machine_tests_that_only_wait_start_with_the_others() {
        let names_of = |emulated: Option<Unit>| {
            let mut units = vec![
                unit("core", Weight::Parts(CORE_PARTS), 9),
                unit("b1", Weight::Alongside, 3),
                unit("b2", Weight::Alongside, 2),
            ];
            units.extend(emulated);
            names(&started(&mut Schedule::new(units, 2))).join(" ")
        };
        assert_eq!(names_of(None), "core b1 b2");
        assert_eq!(names_of(Some(unit("emulated", Weight::Emulated, 99))), "core");
    }
}
