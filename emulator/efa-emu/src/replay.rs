// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Does again what was recorded, without guests, and says what is different.

use std::{
    fs::File,
    io::{BufReader, Read},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use efa_model::{Event, Player};

use crate::record::format::{self, BadRecording, Frame, Reader};

/// What is shown of a recording on the way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Show {
    /// What was traced.
    pub(crate) trace: bool,
    /// Each event, with its number.
    pub(crate) events: bool,
}

/// What became of a recording.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Played {
    /// How many events of each device were the same.
    pub(crate) same: Vec<u64>,
    /// How it ends, if not as it should.
    pub(crate) cut: Option<String>,
}

/// Plays a recording.
///
/// # Errors
///
/// One sentence about what is different, or why it can't be played.
pub(crate) fn replay(path: &Path, only: Option<usize>, show: Show) -> Result<(), String> {
    let of_file = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| of_file(&error))?;
    let print = &mut |line: String| println!("{line}");
    let played = play(BufReader::new(file), only, show, print).map_err(|error| of_file(&error))?;
    for (device, same) in played.same.iter().enumerate() {
        if only.is_none_or(|only| only == device) {
            println!("device {device}: all {same} events are the same");
        }
    }
    if let Some(cut) = played.cut {
        println!("{cut}");
    }
    Ok(())
}

/// Plays a recording of all devices, or of one.
///
/// # Errors
///
/// One sentence about what is different, or why it can't be played.
pub(crate) fn play(
    from: impl Read,
    only: Option<usize>,
    show: Show,
    print: &mut dyn FnMut(String),
) -> Result<Played, String> {
    let bad = |error: BadRecording| error.to_string();
    let (mut reader, start) = Reader::new(from).map_err(bad)?;
    let malformed = |at| bad(BadRecording::Malformed(at));
    let players = start.devices.iter().map(|device| {
        let config = device.config().ok_or_else(|| malformed(reader.at()))?;
        Ok(Player::new(config))
    });
    let mut players = players.collect::<Result<Vec<_>, String>>()?;
    if let Some(only) = only {
        if only >= players.len() {
            return Err(format!("it has no device {only}, only {}", players.len()));
        }
    }
    let mut cut = None;
    loop {
        let at = reader.at();
        let (device, events) = match reader.next_frame().map_err(bad)? {
            Some(Frame::Call { device, events }) => {
                let events = format::events(&events);
                (device as usize, events.ok_or_else(|| malformed(at))?)
            }
            Some(Frame::Lost { device, calls }) => {
                let lost = format!(
                    "the recording of device {device} ends there, as {calls} calls more could not be written in time"
                );
                cut = cut.or(Some(lost));
                continue;
            }
            Some(Frame::Full) => {
                cut = Some("the recording ends there, as it was full".into());
                break;
            }
            Some(Frame::End) => break,
            Some(Frame::Start(_)) => return Err(malformed(at)),
            None => {
                cut = Some(
                    "the recording ends there, in the middle: the program was killed, or the file is not whole"
                        .into(),
                );
                break;
            }
        };
        let player = players.get_mut(device).ok_or_else(|| malformed(at))?;
        if only.is_some_and(|only| only != device) {
            continue;
        }
        tell(device, player.same(), &events, show, print);
        // A device may panic here as it did there.
        let played = catch_unwind(AssertUnwindSafe(|| player.play(events)));
        match played {
            Ok(Ok(())) => {}
            Ok(Err(difference)) => return Err(format!("device {device} differs: {difference}")),
            Err(_) => {
                let (event, call, time) = player.place();
                let (call, time) = (call.unwrap_or_default(), time.as_secs_f64());
                return Err(format!(
                    "device {device} panics before event {event}, at {time:.6} s, in `{call}`"
                ));
            }
        }
    }
    Ok(Played {
        same: players.iter().map(Player::same).collect(),
        cut,
    })
}

/// Shows what was recorded.
fn tell(
    device: usize,
    before: u64,
    events: &[Event<'_>],
    show: Show,
    print: &mut dyn FnMut(String),
) {
    for (number, event) in (before + 1..).zip(events) {
        match event {
            _ if show.events => print(format!("{device} {number} {event}")),
            Event::Trace(line) if show.trace => print(format!("{device} {line}")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread, time::Duration};

    use efa_hw::{admin::pd::AllocPd, regs::ResetReason};
    use efa_model::{Call, Config, Device, Profile, TraceEvent};
    use efa_testing::{mock::Driver, wait::patience};
    use efa_vfio::Observer;
    use proptest::prelude::*;

    use super::*;
    use crate::record::{End, RecordOptions, Recording};

    fn config() -> Config {
        Config::new(Profile::Efa3, 1)
    }

    /// Records a reset and some work.
    fn recorded(
        limit: u64,
        end: End,
        work: impl FnOnce(&mut Driver, &mut dyn Observer),
    ) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let options = RecordOptions::to(&path, limit);
        let (recording, writing) = Recording::new(&options, &[config()]).unwrap().unwrap();
        let writer = thread::spawn(writing);
        let mut observer = recording.observer(0, Box::new(|_: Duration, _: &TraceEvent| ()));
        let mut driver = Driver::powered_on(config());
        driver.device = Device::new(config());
        driver.device.record(observer.recorder().unwrap());
        driver.reset(ResetReason::Normal);
        driver.set_up();
        work(&mut driver, &mut *observer);
        recording.finish(patience(), end);
        writer.join().unwrap();
        fs::read(path).unwrap()
    }

    /// Records so many commands; `ends` says whether the recording has an end.
    fn record(commands: usize, limit: u64, ends: bool) -> Vec<u8> {
        let mut bytes = recorded(limit, End::Orderly, |driver, _| {
            for _ in 0..commands {
                // There are not so many, in the end.
                let _ = driver.execute(&AllocPd {});
            }
        });
        if !ends {
            bytes.truncate(bytes.len() - 5);
        }
        bytes
    }

    /// Records a call that is under way at the end.
    fn interrupted(end: End) -> Vec<u8> {
        recorded(1 << 20, end, |_, observer| {
            let mut recorder = observer.recorder().unwrap();
            recorder.note(&Event::Call(Call::PowerOn));
        })
    }

    fn replayed(bytes: &[u8]) -> Result<Played, String> {
        play(bytes, None, Show::default(), &mut |_| ())
    }

    #[test]
    fn a_whole_recording_is_the_same() {
        let played = replayed(&record(10, 1 << 20, true)).unwrap();
        assert!(played.same[0] > 100, "{played:?}");
        assert_eq!(played.cut, None);
    }

    #[test]
    fn a_call_under_way_is_recorded_if_the_device_may_have_panicked() {
        let played = replayed(&interrupted(End::Orderly)).unwrap();
        assert!(played.same[0] > 10, "{played:?}");
        assert_eq!(played.cut, None);
        let error = replayed(&interrupted(End::Panic)).unwrap_err();
        assert!(error.contains("as the recording ends"), "{error}");
    }

    #[test]
    fn a_recording_that_is_full_says_so() {
        let bytes = record(1000, 64 << 10, true);
        assert!(bytes.len() <= (64 << 10) + 16, "{}", bytes.len());
        let played = replayed(&bytes).unwrap();
        assert!(played.same[0] > 500, "{played:?}");
        assert!(played.cut.unwrap().contains("as it was full"));
    }

    #[test]
    fn a_recording_without_an_end_says_so() {
        let bytes = record(10, 1 << 20, false);
        let whole = replayed(&bytes).unwrap();
        assert!(whole.cut.unwrap().contains("in the middle"));
        // Wherever it ends.
        for length in (bytes.len() / 2)..bytes.len() {
            let played = replayed(&bytes[..length]).unwrap();
            assert!(played.same[0] <= whole.same[0] && played.cut.is_some());
        }
    }

    #[test]
    fn what_is_no_recording_is_named() {
        let good = record(1, 1 << 20, true);
        for (bytes, part) in [
            (&b""[..], "it is no recording of efa-emu"),
            (b"EFA-RED\n\x01\x00", "it is no recording of efa-emu"),
            (
                b"EFA-REC\n\x07\x00",
                "its format is 7, but this program reads 2",
            ),
            (&good[..20], "it is malformed in front of byte 20"),
        ] {
            let error = replayed(bytes).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        let shown = &mut Vec::new();
        let show = Show {
            trace: true,
            events: false,
        };
        play(&good[..], Some(0), show, &mut |line| shown.push(line)).unwrap();
        assert!(shown.iter().any(|line| line == "0 reset end"), "{shown:#?}");
        let error = play(&good[..], Some(1), show, &mut |_| ()).unwrap_err();
        assert_eq!(error, "it has no device 1, only 1");
    }

    #[test]
    fn the_format_is_that_of_its_version() {
        // Who changes what is serialized changes the version, too.
        let event = Event::Interrupt(7);
        let mut bytes = Vec::new();
        format::put(&event, &mut bytes);
        format::put(&Event::Time(Some(1)), &mut bytes);
        assert_eq!(bytes, [7, 7, 5, 1, 1]);
        assert_eq!(format::VERSION, 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A recording that somebody has changed is played or refused.
        #[test]
        fn malformed_recordings_are_harmless(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in any::<prop::sample::Index>(),
        ) {
            static GOOD: std::sync::LazyLock<Vec<u8>> =
                std::sync::LazyLock::new(|| record(5, 1 << 20, true));
            let mut bytes = GOOD.clone();
            for (index, value) in changes {
                let index = index.index(bytes.len());
                bytes[index] = value;
            }
            if cut.index(4) == 0 {
                bytes.truncate(cut.index(bytes.len()));
            }
            let played = replayed(&bytes);
            if let Err(error) = played {
                prop_assert!(!error.contains("panics"), "{error}");
            }
        }
    }
}
