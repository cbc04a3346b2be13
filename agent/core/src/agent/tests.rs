//! Scripts: what happens to an agent, at which time, and what it does about it.

mod cancels;
mod causes;
mod chaos;
mod driver;
mod faults;
mod found;
mod modes;
mod restarts;
mod standing;
mod stuck;
