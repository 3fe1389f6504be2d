//! Bytes per token of one layer on one rank.

use crate::units::Bytes;
use thiserror::Error;

/// Elements that share one fp8 scale in the nvfp4 format.
const NVFP4_SCALE_GROUP: u64 = 16;

/// The storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// 2 bytes.
    Bf16,
    /// 2 bytes.
    Fp16,
    /// 4 bytes.
    Fp32,
    /// 1 byte.
    Fp8,
    /// Half a byte, and one fp8 scale per 16 elements.
    Nvfp4,
}

impl KvDtype {
    /// Every dtype, in the order that messages list them.
    pub const ALL: [Self; 5] = [Self::Bf16, Self::Fp16, Self::Fp32, Self::Fp8, Self::Nvfp4];

    /// The name that [`KvDtype::parse`] reads.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp32 => "fp32",
            Self::Fp8 => "fp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// The dtype of this name.
    ///
    /// # Errors
    /// [`GeometryError::UnknownDtype`] for any other name: an unknown type never costs 0 bytes.
    pub fn parse(name: &str) -> Result<Self, GeometryError> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| GeometryError::UnknownDtype(name.to_owned()))
    }

    /// Bytes of `elements` elements, scales included.
    ///
    /// # Errors
    /// [`GeometryError::Nvfp4Elements`] for nvfp4 and a number that 16 does not divide;
    /// [`GeometryError::Overflow`] beyond `u64`.
    pub fn bytes(self, elements: u64) -> Result<Bytes, GeometryError> {
        let bytes = match self {
            Self::Bf16 | Self::Fp16 => elements.checked_mul(2),
            Self::Fp32 => elements.checked_mul(4),
            Self::Fp8 => Some(elements),
            Self::Nvfp4 if !elements.is_multiple_of(NVFP4_SCALE_GROUP) => {
                return Err(GeometryError::Nvfp4Elements(elements));
            }
            Self::Nvfp4 => elements
                .div_ceil(2)
                .checked_add(elements.div_ceil(NVFP4_SCALE_GROUP)),
        };
        bytes.map(Bytes).ok_or(GeometryError::Overflow)
    }
}

/// What a layer stores per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Multi-head, grouped-query or multi-query attention: a key and a value per KV head.
    Attention {
        /// KV heads of the whole model, over all ranks.
        num_kv_heads: u64,
        /// Elements of a key.
        head_dim: u64,
        /// Elements of a value; `None` where the keys are the values, so that one buffer holds
        /// both.
        v_head_dim: Option<u64>,
    },
    /// Latent attention: one compressed vector and one rotary key for all heads.
    Mla {
        /// Elements of the latent.
        kv_lora_rank: u64,
        /// Elements of the rotary key.
        qk_rope_head_dim: u64,
    },
}

/// One layer that keeps KV per token, for as long as its lifetime rule keeps the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    /// What it stores.
    pub kind: LayerKind,
    /// How it stores it.
    pub dtype: KvDtype,
    /// Raw bytes per token of buffers beside the KV, such as an indexer's keys. They have a
    /// dtype of their own, so the KV dtype never scales them, and no rank shares them.
    pub side_bytes_per_token: Bytes,
}

impl Layer {
    /// Bytes per token on each of `tp_size` ranks (the width of the attention group: 1 under
    /// attention data parallelism).
    ///
    /// KV heads are never cut: with at least as many heads as ranks the widest rank holds
    /// `ceil(heads / tp_size)`, with fewer every rank holds one whole head. A latent is
    /// never divided: each rank stores all of it.
    ///
    /// # Errors
    /// A zero size, ranks that fewer heads cannot be replicated over evenly, an nvfp4 layer
    /// that its scales do not divide, or a product beyond `u64`.
    pub fn bytes_per_token(&self, tp_size: u64) -> Result<Bytes, GeometryError> {
        nonzero("tp_size", tp_size)?;
        let elements = match self.kind {
            LayerKind::Attention {
                num_kv_heads,
                head_dim,
                v_head_dim,
            } => {
                let dims = [("head_dim", Some(head_dim)), ("v_head_dim", v_head_dim)];
                for (field, dim) in dims {
                    let Some(dim) = dim else { continue };
                    nonzero(field, dim)?;
                    if self.dtype == KvDtype::Nvfp4 && dim % 2 != 0 {
                        return Err(GeometryError::Nvfp4OddHead { field, dim });
                    }
                }
                let heads = heads_per_rank(num_kv_heads, tp_size)?;
                head_dim
                    .checked_add(v_head_dim.unwrap_or(0))
                    .and_then(|both| both.checked_mul(heads))
            }
            LayerKind::Mla {
                kv_lora_rank,
                qk_rope_head_dim,
            } => {
                nonzero("kv_lora_rank", kv_lora_rank)?;
                nonzero("qk_rope_head_dim", qk_rope_head_dim)?;
                kv_lora_rank.checked_add(qk_rope_head_dim)
            }
        };
        self.dtype
            .bytes(elements.ok_or(GeometryError::Overflow)?)?
            .checked_add(self.side_bytes_per_token)
            .ok_or(GeometryError::Overflow)
    }
}

/// KV heads that the widest of `tp_size` ranks stores.
fn heads_per_rank(num_kv_heads: u64, tp_size: u64) -> Result<u64, GeometryError> {
    nonzero("num_kv_heads", num_kv_heads)?;
    units_per_rank(num_kv_heads, tp_size).ok_or(GeometryError::HeadsOverRanks {
        num_kv_heads,
        tp_size,
    })
}

/// Whole units that the widest of `tp_size` ranks stores; `None` where fewer units than ranks
/// cannot be replicated evenly. Both are positive.
pub(super) fn units_per_rank(units: u64, tp_size: u64) -> Option<u64> {
    if units >= tp_size {
        return Some(units.div_ceil(tp_size));
    }
    tp_size.is_multiple_of(units).then_some(1)
}

pub(super) fn nonzero(field: &'static str, value: u64) -> Result<(), GeometryError> {
    if value == 0 {
        return Err(GeometryError::Zero { field });
    }
    Ok(())
}

/// A layer that cannot be priced.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GeometryError {
    /// Not a KV dtype.
    #[error("kv_dtype {0:?} is not one of bf16, fp16, fp32, fp8, nvfp4")]
    UnknownDtype(String),
    /// A size that must be positive.
    #[error("{field} is 0; it must be at least 1")]
    Zero {
        /// The field's name.
        field: &'static str,
    },
    /// Heads that cannot be replicated evenly.
    #[error(
        "{num_kv_heads} KV heads cannot be placed on tp_size {tp_size}: \
         with fewer heads than ranks, tp_size must be a multiple of the heads"
    )]
    HeadsOverRanks {
        /// KV heads of the model.
        num_kv_heads: u64,
        /// Ranks that share them.
        tp_size: u64,
    },
    /// Units of a state buffer that cannot be replicated evenly.
    #[error(
        "{split_units} units of state buffer {name:?} cannot be placed on tp_size {tp_size}: \
         with fewer units than ranks, tp_size must be a multiple of the units"
    )]
    StateOverRanks {
        /// The buffer's name.
        name: String,
        /// Heads, groups or channels of the model.
        split_units: u64,
        /// Ranks that share them.
        tp_size: u64,
    },
    /// A state is read and written whole at every step; no kernel packs it by scale groups.
    #[error("state buffer {0:?} is nvfp4; supported: bf16, fp16, fp32, fp8")]
    StateNvfp4(String),
    /// A layer that nvfp4 scales do not divide.
    #[error("nvfp4 has one scale per 16 elements; {0} elements per token and rank are no multiple")]
    Nvfp4Elements(u64),
    /// A head that does not fill whole bytes.
    #[error("nvfp4 packs two elements in a byte; {field} {dim} is odd")]
    Nvfp4OddHead {
        /// The field's name.
        field: &'static str,
        /// Its value.
        dim: u64,
    },
    /// A product or sum left the 64-bit range.
    #[error("the bytes of a layer exceed 64 bits")]
    Overflow,
}

#[cfg(test)]
mod tests {
    use super::{GeometryError, KvDtype, Layer, LayerKind};
    use crate::units::Bytes;

    fn gqa(num_kv_heads: u64, head_dim: u64, dtype: KvDtype) -> Layer {
        Layer {
            kind: LayerKind::Attention {
                num_kv_heads,
                head_dim,
                v_head_dim: Some(head_dim),
            },
            dtype,
            side_bytes_per_token: Bytes::ZERO,
        }
    }

    fn latent(dtype: KvDtype, side: u64) -> Layer {
        Layer {
            kind: LayerKind::Mla {
                kv_lora_rank: 512,
                qk_rope_head_dim: 64,
            },
            dtype,
            side_bytes_per_token: Bytes(side),
        }
    }

    #[test]
    fn attention_by_dtype() {
        // 8 KV heads x 128, K and V.
        for (dtype, bytes) in [
            (KvDtype::Bf16, 4096),
            (KvDtype::Fp16, 4096),
            (KvDtype::Fp32, 8192),
            (KvDtype::Fp8, 2048),
            (KvDtype::Nvfp4, 1152),
        ] {
            assert_eq!(gqa(8, 128, dtype).bytes_per_token(1), Ok(Bytes(bytes)));
        }
    }

    #[test]
    fn heads_are_whole_on_every_rank() {
        // (heads, tp, heads on the widest rank)
        for (heads, tp, widest) in [(8, 4, 2), (8, 16, 1), (8, 32, 1), (10, 4, 3), (1, 2, 1)] {
            let bytes = gqa(heads, 128, KvDtype::Bf16).bytes_per_token(tp);
            assert_eq!(bytes, Ok(Bytes(widest * 512)), "{heads} heads on {tp}");
        }
        assert_eq!(
            gqa(6, 128, KvDtype::Bf16).bytes_per_token(8),
            Err(GeometryError::HeadsOverRanks {
                num_kv_heads: 6,
                tp_size: 8
            })
        );
    }

    #[test]
    fn a_latent_is_never_divided() {
        for tp in [1, 3, 8, 64] {
            assert_eq!(
                latent(KvDtype::Bf16, 0).bytes_per_token(tp),
                Ok(Bytes(1152))
            );
        }
    }

    #[test]
    fn side_buffers_keep_their_size_at_every_dtype() {
        // A 132-byte indexer; the 36-byte residual beside an nvfp4 latent.
        for (dtype, side, bytes) in [
            (KvDtype::Bf16, 132, 1284),
            (KvDtype::Fp8, 132, 708),
            (KvDtype::Nvfp4, 132, 456),
            (KvDtype::Nvfp4, 168, 492),
        ] {
            assert_eq!(latent(dtype, side).bytes_per_token(1), Ok(Bytes(bytes)));
        }
    }

    #[test]
    fn keys_and_values_may_differ_in_size() {
        let layer = Layer {
            kind: LayerKind::Attention {
                num_kv_heads: 4,
                head_dim: 192,
                v_head_dim: Some(128),
            },
            dtype: KvDtype::Bf16,
            side_bytes_per_token: Bytes::ZERO,
        };
        assert_eq!(layer.bytes_per_token(1), Ok(Bytes(4 * 320 * 2)));
    }

    #[test]
    fn values_that_are_the_keys_are_kept_once() {
        let kind = LayerKind::Attention {
            num_kv_heads: 2,
            head_dim: 512,
            v_head_dim: None,
        };
        let layer = Layer {
            kind,
            ..gqa(1, 1, KvDtype::Bf16)
        };
        assert_eq!(layer.bytes_per_token(1), Ok(Bytes(2 * 512 * 2)));
    }

    #[test]
    fn what_cannot_be_priced_is_an_error() {
        assert_eq!(
            gqa(1, 4, KvDtype::Nvfp4).bytes_per_token(1),
            Err(GeometryError::Nvfp4Elements(8))
        );
        assert_eq!(
            gqa(16, 3, KvDtype::Nvfp4).bytes_per_token(1),
            Err(GeometryError::Nvfp4OddHead {
                field: "head_dim",
                dim: 3
            })
        );
        for (layer, tp, field) in [
            (gqa(0, 128, KvDtype::Bf16), 1, "num_kv_heads"),
            (gqa(8, 0, KvDtype::Bf16), 1, "head_dim"),
            (gqa(8, 128, KvDtype::Bf16), 0, "tp_size"),
        ] {
            assert_eq!(
                layer.bytes_per_token(tp),
                Err(GeometryError::Zero { field })
            );
        }
        assert_eq!(
            gqa(u64::MAX, 128, KvDtype::Bf16).bytes_per_token(1),
            Err(GeometryError::Overflow)
        );
        assert!(KvDtype::parse("int3").is_err());
    }
}
