//! Bytes per sequence of the recurrent state of one layer on one rank.

use super::layer::{GeometryError, KvDtype, nonzero, units_per_rank};
use crate::units::Bytes;

/// One tensor of a recurrent state: a matrix per head, or the last inputs of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StateBuffer {
    /// What it is, for messages.
    pub name: String,
    /// Heads, groups or channels of the whole model, which tensor parallelism divides.
    pub split_units: u64,
    /// Elements of one unit.
    pub unit_elements: u64,
    /// Elements that every rank keeps besides its units.
    pub replicated_elements: u64,
    /// How an element is stored.
    pub dtype: KvDtype,
}

impl StateBuffer {
    /// Bytes per sequence on the widest of `tp_size` ranks.
    ///
    /// Units are placed like KV heads: `ceil(split_units / tp_size)` where there are at least as
    /// many as ranks, else one whole unit each.
    ///
    /// # Errors
    /// A zero size, units that cannot be replicated evenly, nvfp4, or a product beyond `u64`.
    pub fn bytes(&self, tp_size: u64) -> Result<Bytes, GeometryError> {
        nonzero("tp_size", tp_size)?;
        nonzero("split_units", self.split_units)?;
        nonzero("unit_elements", self.unit_elements)?;
        if self.dtype == KvDtype::Nvfp4 {
            return Err(GeometryError::StateNvfp4(self.name.clone()));
        }
        let units = units_per_rank(self.split_units, tp_size).ok_or_else(|| {
            GeometryError::StateOverRanks {
                name: self.name.clone(),
                split_units: self.split_units,
                tp_size,
            }
        })?;
        let elements = units
            .checked_mul(self.unit_elements)
            .and_then(|split| split.checked_add(self.replicated_elements))
            .ok_or(GeometryError::Overflow)?;
        self.dtype.bytes(elements)
    }
}

/// Bytes per sequence of all the buffers of a layer on the widest of `tp_size` ranks.
///
/// # Errors
/// As [`StateBuffer::bytes`], for the first buffer that cannot be priced.
pub fn layer_state_bytes(buffers: &[StateBuffer], tp_size: u64) -> Result<Bytes, GeometryError> {
    buffers.iter().try_fold(Bytes::ZERO, |sum, buffer| {
        sum.checked_add(buffer.bytes(tp_size)?)
            .ok_or(GeometryError::Overflow)
    })
}

#[cfg(test)]
mod tests {
    use super::{GeometryError, KvDtype, StateBuffer, layer_state_bytes};
    use crate::units::Bytes;

    fn buffer(name: &str, split_units: u64, unit_elements: u64, dtype: KvDtype) -> StateBuffer {
        StateBuffer {
            name: name.to_owned(),
            split_units,
            unit_elements,
            replicated_elements: 0,
            dtype,
        }
    }

    #[test]
    fn a_gated_delta_net_layer() {
        // 32 value heads of 128 x 128 and 16 key heads; a convolution of 4 keeps 3 inputs of
        // 32 * 128 + 2 * 16 * 128 channels: 49,152 B and 1,048,576 B in bf16, a quarter on 4 ranks.
        let layer = [
            buffer("conv_v", 32, 128 * 3, KvDtype::Bf16),
            buffer("conv_qk", 16, 2 * 128 * 3, KvDtype::Bf16),
            buffer("recurrent", 32, 128 * 128, KvDtype::Bf16),
        ];
        assert_eq!(layer_state_bytes(&layer, 1), Ok(Bytes(49_152 + 1_048_576)));
        assert_eq!(layer_state_bytes(&layer, 4), Ok(Bytes(12_288 + 262_144)));
    }

    #[test]
    fn units_stay_whole_and_replicated_elements_are_on_every_rank() {
        let mut groups = buffer("conv_bc", 1, 10, KvDtype::Fp32);
        assert_eq!(groups.bytes(8), Ok(Bytes(40)));
        groups.replicated_elements = 5;
        assert_eq!(groups.bytes(8), Ok(Bytes(60)));
        groups.split_units = 10;
        assert_eq!(groups.bytes(4), Ok(Bytes((3 * 10 + 5) * 4)));
    }

    #[test]
    fn what_cannot_be_priced_is_an_error() {
        let state = buffer("ssm", 6, 10, KvDtype::Bf16);
        assert_eq!(
            state.bytes(8),
            Err(GeometryError::StateOverRanks {
                name: "ssm".to_owned(),
                split_units: 6,
                tp_size: 8
            })
        );
        assert!(state.bytes(0).is_err());
        assert!(buffer("ssm", 0, 1, KvDtype::Bf16).bytes(1).is_err());
        assert!(buffer("ssm", 1, 0, KvDtype::Bf16).bytes(1).is_err());
        assert_eq!(
            buffer("ssm", 16, 16, KvDtype::Nvfp4).bytes(1),
            Err(GeometryError::StateNvfp4("ssm".to_owned()))
        );
        assert_eq!(
            buffer("ssm", u64::MAX, 2, KvDtype::Fp8).bytes(1),
            Err(GeometryError::Overflow)
        );
    }
}
