//! One request, its attempts, and one true outcome.
//!
//! Reads are repeated until the deadline. When a member stays silent, the read is hedged: a second
//! member receives it too, and the first reply wins. A paused member therefore costs one read half
//! a second and no error. Silence alone does not condemn a member, because its reply may be large.
//! The health probe requests its status, and only when that stays unanswered as well do all calls
//! abandon the member.
//!
//! Writes are sent again only when it is certain that nothing was applied. Every other failure that
//! is not a reply of the server is [`Error::Ambiguous`].

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::classify::{Class, RequestSize, classify};
use crate::connection::{Connection, RequireLeader};
use crate::endpoints::{ConnectDeadline, ConnectionReport, Endpoints, Tried};
use crate::error::{Cause, Denied, Error, Invalid};
use crate::identity::HistoryMark;
use crate::message::header::Headed;
use crate::permission;

/// How often a refused token is renewed within one call. Once is the rule; a second time covers a change of
/// users between sign-in and call; more would be a loop.
const SIGN_INS_MAX: u32 = 2;

/// First pause after a member reported that it cannot serve; doubles up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(50);

/// An election takes about a second: more frequent attempts only add load to it.
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// Attempts of one read that may be in flight together. With three members this covers an election
/// during which every member swallowed one request; more would only add load to a cluster in
/// trouble.
const HEDGES_MAX: usize = 6;

/// The kind of a request, which decides how it is retried and what its reply proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Changes nothing; its reply is at least as new as everything seen before.
    Read,
    /// Changes nothing; its reply comes from one member that may lag.
    LocalRead,
    /// May change something.
    Write,
}

/// A method of the protocol and a request for it.
#[derive(Debug)]
pub(crate) struct Call<Q> {
    pub(crate) path: &'static str,
    pub(crate) kind: CallKind,
    pub(crate) message: Q,
    pub(crate) size: RequestSize,
}

/// The end of one attempt.
enum CallAttempt<R> {
    Done(R),
    /// Certainly without effect: the call may go on elsewhere.
    Again(Cause),
    /// Final.
    Over(Error),
}

impl Endpoints {
    /// Makes the call, with the attempts its kind allows, within the deadline.
    ///
    /// The message is encoded here, once for all attempts, and outside of the future, which is
    /// copied when it is boxed.
    pub(crate) fn call<Q, R>(
        self: &Arc<Self>,
        call: Call<Q>,
    ) -> impl Future<Output = Result<R, Error>> + use<'_, Q, R>
    where
        Q: prost::Message,
        R: prost::Message + Default + Headed + 'static,
    {
        let Call { path, kind, message, mut size } = call;
        size.bytes = message.encoded_len();
        size.bytes_max = self.config.request_bytes_max;
        size.ops_max = self.config.txn_ops_max;
        let message =
            if size.bytes > size.bytes_max { None } else { Some(Bytes::from(message.encode_to_vec())) };
        async move {
            let Some(message) = message else {
                return Err(Invalid::TooLarge { bytes: size.bytes, limit: size.bytes_max }.into());
            };
            let call = Call { path, kind, message, size };
            self.timer_tick.call();
            let until = Instant::now() + self.config.deadline;
            match kind {
                CallKind::Read | CallKind::LocalRead => self.read(&call, until).await,
                CallKind::Write => self.write(&call, until).await,
            }
        }
    }

    async fn write<R>(self: &Arc<Self>, call: &Call<Bytes>, until: Instant) -> Result<R, Error>
    where
        R: prost::Message + Default + Headed + 'static,
    {
        let mut budget = RetryBudget::default();
        loop {
            let connection = self.acquire(until, None, ConnectDeadline::UntilDeadline).await?;
            match self.send(call, &connection, until, &mut budget).await {
                CallAttempt::Done(answer) => return Ok(answer),
                CallAttempt::Over(error) => return Err(error),
                CallAttempt::Again(cause) => {
                    budget.pause(until).await.map_err(|()| Error::Unavailable(cause))?;
                }
            }
        }
    }

    async fn read<R>(self: &Arc<Self>, call: &Call<Bytes>, until: Instant) -> Result<R, Error>
    where
        R: prost::Message + Default + Headed + 'static,
    {
        let tried = Tried::default();
        let one_try = async || {
            let mut budget = RetryBudget::default();
            loop {
                let connection = match self.acquire(until, Some(&tried), ConnectDeadline::UntilDeadline).await
                {
                    Ok(connection) => connection,
                    Err(error) => return (None, Err(error)),
                };
                match self.send(call, &connection, until, &mut budget).await {
                    CallAttempt::Done(answer) => return (Some(connection), Ok(answer)),
                    CallAttempt::Over(error) => return (None, Err(error)),
                    CallAttempt::Again(cause) => {
                        if budget.pause(until).await.is_err() {
                            return (None, Err(Error::Unavailable(cause)));
                        }
                    }
                }
            }
        };
        let mut tries = FuturesUnordered::new();
        tries.push(one_try());
        let mut hedge_after = self.config.per_try / 2;
        let mut hedge_at = Instant::now() + hedge_after;
        loop {
            let ended = tokio::select! {
                biased;
                ended = tries.next() => ended,
                () = sleep_until(hedge_at), if tries.len() < self.hedges_max() => None,
            };
            match ended {
                Some((answered_by, outcome)) => {
                    if let Some(connection) = answered_by.filter(|_| !tries.is_empty()) {
                        // An attempt sent before this one is still unanswered: its member is slow,
                        // so later calls avoid it.
                        self.prefer(&connection);
                    }
                    return outcome;
                }
                None => {
                    tries.push(one_try());
                    if tries.len() > self.endpoint_count() {
                        hedge_after *= 2;
                    }
                    hedge_at = Instant::now() + hedge_after;
                }
            }
        }
    }

    /// Sends the request once and interprets the outcome. Reports what it saw to the endpoint
    /// selector.
    async fn send<R>(
        &self,
        call: &Call<Bytes>,
        connection: &Connection,
        until: Instant,
        budget: &mut RetryBudget,
    ) -> CallAttempt<R>
    where
        R: prost::Message + Default + Headed + 'static,
    {
        let mark = match self.identity.mark() {
            Ok(mark) => mark,
            Err(error) => return CallAttempt::Over(error),
        };
        let request = match connection.request(call.message.clone(), RequireLeader::No) {
            Ok(request) => request,
            Err(error) => return CallAttempt::Over(error),
        };
        let patience = match call.kind {
            CallKind::Read | CallKind::LocalRead => self.config.per_try / 2,
            CallKind::Write => self.config.per_try,
        };
        let mut answer = pin!(connection.unary_written::<R>(call.path, request));
        let answered = match timeout_at(until.min(Instant::now() + patience), &mut answer).await {
            Ok(answered) => Some(answered),
            Err(_) => {
                self.suspect(connection);
                tokio::select! {
                    biased;
                    answered = &mut answer => Some(answered),
                    () = self.abandoned(connection) => None,
                    () = sleep_until(until) => None,
                }
            }
        };
        match answered {
            Some(Ok(answer)) => self.accept(call.kind, connection, answer, mark),
            Some(Err(status)) => self.interpret(call, connection, classify(&status, call.size), budget),
            None => call.lost(Cause::at(&connection.address, "no answer came")),
        }
    }

    /// A reply counts only if it comes from the known cluster.
    fn accept<R: Headed>(
        &self,
        kind: CallKind,
        connection: &Connection,
        answer: R,
        sent: HistoryMark,
    ) -> CallAttempt<R> {
        self.report(connection, ConnectionReport::Healthy);
        let checked = match (answer.header(), kind) {
            (None, _) => Ok(()),
            (Some(header), CallKind::LocalRead) => self.identity.observe(header),
            (Some(header), CallKind::Read | CallKind::Write) => {
                self.identity.observe_linearizable(header, sent)
            }
        };
        match checked {
            Ok(()) => CallAttempt::Done(answer),
            Err(error) => CallAttempt::Over(error),
        }
    }

    fn interpret<R>(
        &self,
        call: &Call<Bytes>,
        connection: &Connection,
        class: Class,
        budget: &mut RetryBudget,
    ) -> CallAttempt<R> {
        let at = |text: String| Cause::at(&connection.address, text);
        match class {
            Class::Answer(Error::Denied(Denied::Permission { .. })) => {
                self.report(connection, ConnectionReport::Healthy);
                let user = self.config.user.as_ref().map(|user| user.name.as_str());
                CallAttempt::Over(Error::Denied(permission::missing(call.path, &call.message, user)))
            }
            Class::Answer(error) => {
                self.report(connection, ConnectionReport::Healthy);
                CallAttempt::Over(error)
            }
            Class::Stale(text) => {
                self.report(connection, ConnectionReport::Unauthenticated);
                if self.config.user.is_none() {
                    CallAttempt::Over(Error::Denied(Denied::Credentials(
                        "the server requires a user and a password, and none is configured".to_owned(),
                    )))
                } else if budget.may_sign_in() {
                    CallAttempt::Again(at(text))
                } else {
                    let text = format!("the server refuses every token that it issues: {text}");
                    CallAttempt::Over(Error::Denied(Denied::Credentials(text)))
                }
            }
            Class::Unsent(text) => {
                self.report(connection, ConnectionReport::Gone);
                CallAttempt::Again(at(text))
            }
            Class::Refused(text) => {
                self.report(connection, ConnectionReport::Failed(text.clone()));
                budget.slow_down();
                CallAttempt::Again(at(text))
            }
            Class::Overlong(text) => {
                self.report(connection, ConnectionReport::Healthy);
                match call.kind {
                    CallKind::Read | CallKind::LocalRead => {
                        CallAttempt::Over(Invalid::AnswerTooLarge(text).into())
                    }
                    CallKind::Write => CallAttempt::Over(Error::Ambiguous(at(text))),
                }
            }
            Class::Lost(text) => {
                self.report(connection, ConnectionReport::Failed(text.clone()));
                budget.slow_down();
                call.lost(at(text))
            }
        }
    }

    /// How many attempts of one read may be in flight together. With a single member a read is not
    /// hedged: both attempts would reach the same server.
    fn hedges_max(&self) -> usize {
        if self.endpoint_count() == 1 { 1 } else { HEDGES_MAX }
    }
}

impl<Q> Call<Q> {
    /// Without a reply a read is repeated. A write is ambiguous, because the member may have
    /// applied it.
    fn lost<R>(&self, cause: Cause) -> CallAttempt<R> {
        match self.kind {
            CallKind::Read | CallKind::LocalRead => CallAttempt::Again(cause),
            CallKind::Write => CallAttempt::Over(Error::Ambiguous(cause)),
        }
    }
}

/// What one call has spent so far.
#[derive(Debug, Default)]
struct RetryBudget {
    sign_ins: u32,
    pause: Duration,
}

impl RetryBudget {
    fn may_sign_in(&mut self) -> bool {
        self.sign_ins += 1;
        self.sign_ins <= SIGN_INS_MAX
    }

    fn slow_down(&mut self) {
        self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_MAX);
    }

    /// Waits before the next attempt; an error when the deadline comes first.
    async fn pause(&self, until: Instant) -> Result<(), ()> {
        let at = Instant::now() + self.pause;
        if at >= until {
            return Err(());
        }
        sleep_until(at).await;
        Ok(())
    }
}
