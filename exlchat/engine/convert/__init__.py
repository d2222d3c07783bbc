"""Float, GPTQ and AWQ models -> EXL2: what each matrix costs at each width, which widths to take, rounding, writing."""
