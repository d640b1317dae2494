import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdCompressCtx;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import net.jpountz.lz4.LZ4Compressor;
import net.jpountz.lz4.LZ4Factory;

/** The least CPU nanoseconds that a file takes: lz4 by blocks of 64 KiB, as Kafka's producer has them, zstd whole. */
public class CodecSpeed {
    private static final int BLOCK = 64 * 1024, ROUNDS = 300, LEVEL = 3;

    private interface Codec {
        long compress(byte[] data);
    }

    public static void main(String[] arguments) throws Exception {
        byte[] data = Files.readAllBytes(Path.of(arguments[1]));
        Codec codec = arguments[0].equals("lz4") ? lz4() : zstd(data.length);
        var thread = ManagementFactory.getThreadMXBean();
        long least = Long.MAX_VALUE, packed = 0;
        for (int round = 0; round < ROUNDS; round++) {
            long before = thread.getCurrentThreadCpuTime();
            packed = codec.compress(data);
            least = Math.min(least, thread.getCurrentThreadCpuTime() - before);
        }
        System.out.println(least + " " + packed);
    }

    private static Codec lz4() {
        LZ4Compressor compressor = LZ4Factory.fastestInstance().fastCompressor();
        byte[] out = new byte[compressor.maxCompressedLength(BLOCK)];
        return data -> {
            long packed = 0;
            for (int at = 0; at < data.length; at += BLOCK) {
                packed += compressor.compress(data, at, Math.min(BLOCK, data.length - at), out, 0, out.length);
            }
            return packed;
        };
    }

    private static Codec zstd(int size) {
        ZstdCompressCtx context = new ZstdCompressCtx().setLevel(LEVEL);
        byte[] out = new byte[(int) Zstd.compressBound(size)];
        return data -> context.compressByteArray(out, 0, out.length, data, 0, data.length);
    }
}
