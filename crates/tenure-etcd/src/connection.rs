//! One open, signed-in connection to one member. All calls share it; it never reconnects by itself.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::metadata::{Ascii, MetadataValue};
use tonic_prost::{ProstCodec, ProstDecoder};

use crate::endpoint_selector::EndpointId;
use crate::error::Error;
use crate::http2::Http2Channel;

/// Replies up to this size are accepted. 3,000 deletes with their old values are 6 MB in one
/// message, which the default of 4 MiB would refuse again on every resume.
pub(crate) const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A channel and the token that goes with it.
pub(crate) struct Connection {
    /// The member behind it.
    pub(crate) endpoint: EndpointId,
    /// Its address, for people.
    pub(crate) address: Arc<str>,
    /// Counts the connections of this endpoint, so that a late report cannot harm a newer one.
    pub(crate) generation: u64,
    pub(crate) channel: Http2Channel,
    pub(crate) token: Option<AuthToken>,
    /// Shared, because cloning the token itself takes a lock for every request.
    pub(crate) closed: Arc<CancellationToken>,
}

/// The token that the server issued for name and password.
#[derive(Clone)]
pub(crate) struct AuthToken {
    /// Counts the tokens of this client, so that a late refusal of an old token cannot discard a
    /// newer one.
    pub(crate) serial: u64,
    /// Marked sensitive, so that no log of headers shows it.
    pub(crate) value: MetadataValue<Ascii>,
}

/// Whether the member must know a leader to take the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequireLeader {
    /// Refuse at once, and end the stream when the leader is lost.
    Yes,
    /// Wait until there is a leader.
    No,
}

impl Connection {
    /// Wraps a message with the token and, if required, the demand for a leader.
    pub(crate) fn request<T>(&self, message: T, leader: RequireLeader) -> Result<tonic::Request<T>, Error> {
        if self.closed.is_cancelled() {
            return Err(Error::Closed);
        }
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.value.clone());
        }
        if leader == RequireLeader::Yes {
            request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        }
        Ok(request)
    }

    /// The channel, ready for calls.
    pub(crate) fn grpc(&self) -> Grpc<Http2Channel> {
        Grpc::with_origin(self.channel.clone(), self.channel.origin().clone())
            .max_decoding_message_size(REPLY_BYTES_MAX)
    }

    /// Sends one request and waits for its reply, without any timer.
    pub(crate) async fn unary<Q, R>(
        &self,
        path: &'static str,
        request: tonic::Request<Q>,
    ) -> Result<R, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let path = PathAndQuery::from_static(path);
        grpc.unary(request, path, ProstCodec::<Q, R>::default()).await.map(tonic::Response::into_inner)
    }

    /// The same for a request that is encoded already.
    pub(crate) async fn unary_written<R>(
        &self,
        path: &'static str,
        request: tonic::Request<Bytes>,
    ) -> Result<R, Status>
    where
        R: prost::Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let path = PathAndQuery::from_static(path);
        grpc.unary(request, path, EncodedCodec(PhantomData)).await.map(tonic::Response::into_inner)
    }
}

/// Sends messages that are encoded already, and decodes replies.
struct EncodedCodec<R>(PhantomData<R>);

impl<R: prost::Message + Default + 'static> Codec for EncodedCodec<R> {
    type Encode = Bytes;
    type Decode = R;
    type Encoder = RawEncoder;
    type Decoder = ProstDecoder<R>;

    fn encoder(&mut self) -> RawEncoder {
        RawEncoder
    }

    fn decoder(&mut self) -> ProstDecoder<R> {
        ProstCodec::<(), R>::default().decoder()
    }
}

/// Passes bytes through unchanged.
struct RawEncoder;

impl Encoder for RawEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(message.len());
        buffer.put(message);
        Ok(())
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.address)
            .field("generation", &self.generation)
            .field("signed_in", &self.token.is_some())
            .finish_non_exhaustive()
    }
}
