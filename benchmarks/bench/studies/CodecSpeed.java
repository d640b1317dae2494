import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.RecyclingBufferPool;
import com.github.luben.zstd.ZstdCompressCtx;
import com.github.luben.zstd.ZstdOutputStreamNoFinalizer;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import net.jpountz.lz4.LZ4FrameOutputStream;
import net.jpountz.lz4.LZ4FrameOutputStream.BLOCKSIZE;
import net.jpountz.lz4.LZ4FrameOutputStream.FLG;

/** The least CPU nanoseconds that a file takes: lz4 as a frame of blocks of 64 KiB and zstd as a stream, as Kafka's producer has them; zstd whole. */
public class CodecSpeed {
    private static final int ROUNDS = 300, LEVEL = 3, BUFFER = 16 * 1024, PIECE = 1000;

    private interface Codec {
        long compress(byte[] data) throws IOException;
    }

    public static void main(String[] arguments) throws Exception {
        byte[] data = Files.readAllBytes(Path.of(arguments[1]));
        Codec codec = switch (arguments[0]) {
            case "lz4" -> lz4(data.length);
            case "zstd" -> zstd(data.length);
            case "zstd-stream" -> zstdStream(data.length);
            default -> throw new IllegalArgumentException(arguments[0]);
        };
        var thread = ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE, packed = 0;
        for (int round = 0; round < ROUNDS; round++) {
            long before = thread.getCurrentThreadCpuTime();
            packed = codec.compress(data);
            least = Math.min(least, thread.getCurrentThreadCpuTime() - before);
        }
        System.out.println(least + " " + packed);
    }

    private static Codec lz4(int size) {
        var out = new ByteArrayOutputStream(size);
        return data -> {
            out.reset();
            try (var frame = new LZ4FrameOutputStream(out, BLOCKSIZE.SIZE_64KB, FLG.Bits.BLOCK_INDEPENDENCE)) {
                frame.write(data);
            }
            return out.size();
        };
    }

    private static Codec zstdStream(int size) {
        var out = new ByteArrayOutputStream(size);
        return data -> {
            out.reset();
            var frame = new ZstdOutputStreamNoFinalizer(out, RecyclingBufferPool.INSTANCE, LEVEL);
            try (var buffered = new BufferedOutputStream(frame, BUFFER)) {
                for (int at = 0; at < data.length; at += PIECE) {
                    buffered.write(data, at, Math.min(PIECE, data.length - at));
                }
            }
            return out.size();
        };
    }

    private static Codec zstd(int size) {
        ZstdCompressCtx context = new ZstdCompressCtx().setLevel(LEVEL);
        byte[] out = new byte[(int) Zstd.compressBound(size)];
        return data -> context.compressByteArray(out, 0, out.length, data, 0, data.length);
    }
}
