// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Who keeps what happens.

use std::fmt::Debug;

use super::event::Event;

/// Who keeps what a device was told, and what it did.
///
/// It is told under the lock of the device, if that has one, so it must not wait for anybody.
pub trait Recorder: Debug + Send {
    /// Takes note of an event. A call is noted before it is carried out, and all that it leads to follows.
    fn note(&mut self, event: &Event<'_>);

    /// The call whose return was just noted has ended, and nothing else belongs to it.
    fn end(&mut self) {}
}
